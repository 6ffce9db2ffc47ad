#include "store.h"

#include <nanobind/stl/string.h>
#include <unistd.h>

#include <utility>

#include "tide/error.h"

namespace nb = nanobind;

namespace tide::python {
namespace {

// c10d raises DistStoreError or RuntimeError for a wait that ran out; only the text tells.
bool is_timeout(const nb::python_error& error) {
  if (error.matches(PyExc_TimeoutError)) return true;
  const std::string text = nb::str(error.value()).c_str();
  return text.find("timeout") != std::string::npos || text.find("timed out") != std::string::npos;
}

[[noreturn]] void rethrow(const nb::python_error& error, const std::string& doing, const std::string& key) {
  const std::string text = nb::str(error.value()).c_str();
  const bool late = is_timeout(error);
  throw Error(late ? ErrorCode::timeout : ErrorCode::system,
              "the store could not " + doing + " key \"" + key + "\": " + text.substr(0, text.find('\n')) +
                  (late ? "; check that every rank is alive and reaches the same call" : ""));
}

class PythonStore final : public Store {
 public:
  explicit PythonStore(nb::object object) : object_(std::move(object)), owner_(getpid()) {}

  ~PythonStore() override {
    // The last reference may go in a thread without the GIL, at exit, or in a forked child.
    if (nb::is_alive() && owner_ == getpid()) {
      nb::gil_scoped_acquire gil;
      object_.reset();
    } else {
      (void)object_.release();
    }
  }

  void set(const std::string& key, const std::string& value) override {
    nb::gil_scoped_acquire gil;
    try {
      object_.attr("set")(key, nb::bytes(value.data(), value.size()));
    } catch (const nb::python_error& error) {
      if (!error.matches(PyExc_Exception)) throw;  // KeyboardInterrupt and SystemExit pass
      rethrow(error, "set", key);
    }
  }

  std::string get(const std::string& key, std::chrono::milliseconds deadline) override {
    nb::gil_scoped_acquire gil;
    try {
      if (nb::hasattr(object_, "wait")) {
        nb::list keys;
        keys.append(key);
        nb::object timedelta = nb::module_::import_("datetime").attr("timedelta");
        object_.attr("wait")(keys, timedelta(0, 0, 0, static_cast<int64_t>(deadline.count())));
      }
      nb::object value = object_.attr("get")(key);
      if (nb::isinstance<nb::str>(value)) return nb::cast<std::string>(value);
      nb::bytes bytes(value);
      return std::string(bytes.c_str(), bytes.size());
    } catch (const nb::python_error& error) {
      if (!error.matches(PyExc_Exception)) throw;
      rethrow(error, "get", key);
    }
  }

 private:
  nb::object object_;
  pid_t owner_;
};

}  // namespace

std::shared_ptr<Store> make_store(nb::object object) {
  if (object.is_none()) return nullptr;
  for (const char* method : {"set", "get"}) {
    if (!nb::hasattr(object, method)) {
      throw Error(ErrorCode::invalid_argument, "store of type " + std::string(nb::type_name(object.type()).c_str()) +
                                                   " has no method " + method +
                                                   "(): pass a torch.distributed store or an object with set and get");
    }
  }
  return std::make_shared<PythonStore>(std::move(object));
}

}  // namespace tide::python
