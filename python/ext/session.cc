#include "tide/session.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "session.h"
#include "store.h"
#include "tide/error.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tide::python {
namespace {

using Addresses = std::vector<uintptr_t>;
using TensorTuple = std::tuple<std::string, std::vector<int64_t>, std::string, bool>;
using Bytes = nb::ndarray<uint8_t, nb::ndim<1>, nb::device::cpu>;

std::vector<const void*> pointers(const Addresses& addresses) {
  std::vector<const void*> out;
  out.reserve(addresses.size());
  for (uintptr_t address : addresses) out.push_back(reinterpret_cast<const void*>(address));
  return out;
}

Group make_group(const std::string& name, const std::vector<TensorTuple>& tensors) {
  Group group{.name = name, .tensors = {}};
  group.tensors.reserve(tensors.size());
  for (const auto& [tensor, shape, dtype, trainable] : tensors) {
    group.tensors.push_back({.name = tensor, .shape = shape, .dtype = parse_dtype(dtype), .trainable = trainable});
  }
  return group;
}

std::chrono::milliseconds milliseconds(double seconds) {
  if (!(seconds > 0) || seconds > 1e9) {
    throw Error(ErrorCode::invalid_argument,
                "deadline is " + std::to_string(seconds) + " s: give a number of seconds above 0 and up to 1e9");
  }
  return std::chrono::milliseconds(static_cast<int64_t>(std::ceil(seconds * 1e3)));
}

// A Session with what Python adds: calls from several threads take turns without the GIL, and a forked child is told
// so instead of touching its parent's memory and sockets.
class PySession {
 public:
  PySession(int32_t rank, int32_t world, nb::object store, std::string job, const std::string& landing,
            int32_t ring_depth, int64_t alignment, int64_t chunk_bytes, int32_t staging_slots, int32_t passes,
            double deadline)
      : owner_(getpid()) {
    SessionOptions options;
    options.rank = rank;
    options.world = world;
    options.store = make_store(std::move(store));
    options.job = std::move(job);
    options.plan.nodes = 1;
    options.plan.local = world;
    options.plan.landing = parse_landing(landing);
    options.plan.ring_depth = ring_depth;
    options.plan.alignment = alignment;
    options.plan.chunk_bytes = chunk_bytes;
    options.plan.staging_slots = staging_slots;
    options.plan.passes = passes;
    options.deadline = milliseconds(deadline);
    nb::gil_scoped_release unlocked;
    session_ = std::make_unique<Session>(std::move(options));
  }

  ~PySession() {
    // A child must not run the parent's goodbye; the kernel takes back what it mapped.
    if (getpid() != owner_) {
      (void)session_.release();
      return;
    }
    nb::gil_scoped_release unlocked;
    session_.reset();
  }
  PySession(const PySession&) = delete;
  PySession& operator=(const PySession&) = delete;

  template <typename Call>
  auto run(Call&& call) {
    if (getpid() != owner_) {
      throw Error(ErrorCode::closed, "this session belongs to process " + std::to_string(owner_) +
                                         ": make a session of its own in the forked process");
    }
    nb::gil_scoped_release unlocked;
    std::lock_guard<std::mutex> turn(mutex_);
    return call(*session_);
  }

 private:
  std::unique_ptr<Session> session_;
  std::mutex mutex_;
  pid_t owner_;
};

void check_group(Session& session, GroupId group, int64_t param) {
  const int64_t count = static_cast<int64_t>(session.layout(group).params().size());
  if (param < 0 || param >= count) {
    throw Error(ErrorCode::invalid_argument, "parameter " + std::to_string(param) + " of group " +
                                                 std::to_string(group) + " does not exist: it has " +
                                                 std::to_string(count));
  }
}

// `owner` is the Python session: a tensor made from the result keeps the mapping alive.
Bytes landing_bytes(nb::handle owner, GroupId group, int64_t param) {
  auto [data, bytes] = nb::cast<PySession&>(owner).run([&](Session& session) {
    check_group(session, group, param);
    const ParamLayout& place = session.layout(group).params()[static_cast<size_t>(param)];
    return std::pair<void*, int64_t>(session.landing(group, param), place.rows * place.row_bytes);
  });
  return Bytes(data, {static_cast<size_t>(bytes)}, owner);
}

Bytes shard_bytes(nb::handle owner, GroupId group, int64_t param) {
  auto [data, bytes] = nb::cast<PySession&>(owner).run([&](Session& session) {
    check_group(session, group, param);
    const ParamLayout& place = session.layout(group).params()[static_cast<size_t>(param)];
    return std::pair<void*, int64_t>(session.shard_memory(group, param),
                                     place.padded_elements() * itemsize(place.shard_dtype));
  });
  return Bytes(data, {static_cast<size_t>(bytes)}, owner);
}

void reduce_scatter(PySession& self, GroupId group, const Addresses& grads, uintptr_t out, int64_t out_elements,
                    const std::string& grad_dtype, float alpha, bool accumulate) {
  const std::vector<const void*> sources = pointers(grads);
  const ReduceOptions options{.grad_dtype = parse_dtype(grad_dtype), .alpha = alpha, .accumulate = accumulate};
  self.run([&](Session& session) {
    const Layout& layout = session.layout(group);
    if (sources.size() == layout.params().size()) {
      std::vector<bool> present(sources.size());
      for (size_t p = 0; p < sources.size(); ++p) present[p] = sources[p] != nullptr;
      const int64_t needed = packed_elements(layout, present);
      if (needed != out_elements) {
        throw Error(ErrorCode::invalid_argument,
                    "out has " + std::to_string(out_elements) + " elements, and the gradients of group \"" +
                        layout.group().name + "\" pack into " + std::to_string(needed) + ": pass exactly that many");
      }
    }
    session.reduce_scatter(group, sources, reinterpret_cast<float*>(out), options);
  });
}

}  // namespace

void bind_session(nb::module_& module) {
  nb::class_<Layout>(module, "Layout", "Where the bytes of a parameter group stand.")
      .def(
          "__init__",
          [](Layout* self, const std::string& name, const std::vector<TensorTuple>& tensors, int64_t world,
             int64_t alignment, bool cast, const std::string& gather_dtype) {
            new (self) Layout(
                make_group(name, tensors),
                {.world = world, .alignment = alignment, .cast = cast, .gather_dtype = parse_dtype(gather_dtype)});
          },
          "name"_a, "tensors"_a, nb::kw_only(), "world"_a, "alignment"_a = 256, "cast"_a = false,
          "gather_dtype"_a = "bf16", "tensors: (name, shape, dtype, trainable) each.")
      .def_prop_ro("world", &Layout::world)
      .def_prop_ro("landing_bytes", &Layout::landing_bytes)
      .def_prop_ro("packed_shard_bytes", &Layout::packed_shard_bytes)
      .def_prop_ro("packed_grad_elements", &Layout::packed_grad_elements)
      .def_prop_ro("elements", &Layout::elements)
      .def(
          "packed_elements",
          [](const Layout& self, const std::vector<bool>& present) { return packed_elements(self, present); },
          "present"_a, "Elements of a rank's reduce-scatter output over the tensors marked present.");

  nb::class_<PySession>(module, "Session", R"(The collectives of one model between the processes of one machine.

Collective: commit, all_gather, reduce_scatter and close, called by every rank in the same order. Tensors are passed as
addresses (tensor.data_ptr(), 0 for none) and stay the caller's to keep alive.)")
      .def(nb::init<int32_t, int32_t, nb::object, std::string, const std::string&, int32_t, int64_t, int64_t, int32_t,
                    int32_t, double>(),
           "rank"_a, "world"_a, "store"_a.none() = nb::none(), nb::kw_only(), "job"_a = "tide",
           "landing"_a = "resident", "ring_depth"_a = Plan{}.ring_depth, "alignment"_a = Plan{}.alignment,
           "chunk_bytes"_a = Plan{}.chunk_bytes, "staging_slots"_a = Plan{}.staging_slots, "passes"_a = Plan{}.passes,
           "deadline"_a = 60.0)
      .def(
          "register_group",
          [](PySession& self, const std::string& name, const std::vector<TensorTuple>& tensors, bool cast,
             const std::string& gather_dtype, bool resident_shards) {
            const Group group = make_group(name, tensors);
            const GroupOptions options{
                .cast = cast, .gather_dtype = parse_dtype(gather_dtype), .resident_shards = resident_shards};
            return self.run([&](Session& session) { return session.register_group(group, options); });
          },
          "name"_a, "tensors"_a, nb::kw_only(), "cast"_a = false, "gather_dtype"_a = "bf16",
          "resident_shards"_a = false, "Local. tensors: (name, shape, dtype, trainable) each. Returns the group's id.")
      .def(
          "commit", [](PySession& self) { self.run([](Session& session) { session.commit(); }); },
          "Meets the other ranks, compares every group and option, maps the memory.")
      .def(
          "all_gather",
          [](PySession& self, GroupId group, const Addresses& shards, bool unchanged) {
            const std::vector<const void*> sources = pointers(shards);
            self.run([&](Session& session) { session.all_gather(group, sources, unchanged); });
          },
          "group"_a, "shards"_a, "unchanged"_a = false,
          "Fills the group's landing; it holds every tensor until release(). unchanged: this rank's shards are what "
          "they were at its previous gather of this group.")
      .def(
          "release", [](PySession& self, GroupId group) { self.run([&](Session& s) { s.release(group); }); }, "group"_a)
      .def("reduce_scatter", &reduce_scatter, "group"_a, "grads"_a, "out"_a, "out_elements"_a, nb::kw_only(),
           "grad_dtype"_a = "bf16", "alpha"_a = 1.0F, "accumulate"_a = false,
           "Sums the ranks' gradients in rank order, times alpha, into out: fp32, packed over the gradients present.")
      .def("landing", &landing_bytes, nb::sig("def landing(self, group: int, param: int) -> object"), "group"_a,
           "param"_a, "The bytes of one unsharded tensor, without a copy: DLPack and buffer protocol.")
      .def("shard_memory", &shard_bytes, nb::sig("def shard_memory(self, group: int, param: int) -> object"), "group"_a,
           "param"_a, "Resident shards: the bytes of this rank's padded shard of one tensor.")
      .def(
          "layout",
          [](PySession& self, GroupId group) { return self.run([&](Session& s) { return Layout(s.layout(group)); }); },
          "group"_a)
      .def(
          "stats",
          [](PySession& self, GroupId group) {
            const GroupStats stats = self.run([&](Session& s) { return s.stats(group); });
            nb::dict out;
            out["gathers"] = stats.gathers;
            out["kept"] = stats.kept;
            out["reduces"] = stats.reduces;
            out["bytes_moved"] = stats.bytes_moved;
            out["wait_seconds"] = stats.wait_seconds;
            return out;
          },
          "group"_a)
      .def_prop_ro(
          "memory_bytes", [](PySession& self) { return self.run([](Session& s) { return s.memory_bytes(); }); },
          "Bytes that this session takes on the machine, all ranks together.")
      .def(
          "close", [](PySession& self) { self.run([](Session& session) { session.close(); }); },
          "Leaves together with the other ranks, within the deadline. Idempotent.");
}

}  // namespace tide::python
