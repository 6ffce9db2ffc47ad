#include "errors.h"

#include <nanobind/stl/string.h>

#include <string>

#include "tide/error.h"

namespace nb = nanobind;

namespace tide::python {
namespace {

constexpr ErrorCode kCodes[] = {
    ErrorCode::invalid_argument, ErrorCode::unsupported, ErrorCode::mismatch, ErrorCode::no_space,
    ErrorCode::peer_lost,        ErrorCode::timeout,     ErrorCode::aborted,  ErrorCode::closed,
    ErrorCode::check_failed,     ErrorCode::system};

bool recoverable_name(const std::string& code) {
  for (ErrorCode candidate : kCodes) {
    if (name(candidate) == code) return recoverable(candidate);
  }
  throw Error(ErrorCode::invalid_argument, "error code \"" + code + "\" is not one of tide's: see tide.Error.code");
}

}  // namespace

void bind_errors(nb::module_& module) {
  module.def("recoverable", &recoverable_name, nb::arg("code"),
             "Whether a failure with this code is one of the surroundings, so that a restart may succeed.");
  nb::register_exception_translator([](const std::exception_ptr& pointer, void*) {
    try {
      std::rethrow_exception(pointer);
    } catch (const Error& error) {
      // The class lives in Python so that it pickles: ranks hand exceptions to their launcher.
      nb::object type = nb::module_::import_("tide._error").attr("Error");
      nb::object instance = type(std::string(name(error.code())), std::string(error.what()));
      PyErr_SetObject(type.ptr(), instance.ptr());
    }
  });
}

}  // namespace tide::python
