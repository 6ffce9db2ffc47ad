// The extension module tide._tide: the C++ library without a compile against PyTorch.
#include <nanobind/nanobind.h>

#include "errors.h"
#include "session.h"
#include "tide/version.h"

NB_MODULE(_tide, module) {
  // A model keeps its session until the process ends, which is no leak.
  nanobind::set_leak_warnings(false);
  module.attr("__version__") = TIDE_VERSION;
  tide::python::bind_errors(module);
  tide::python::bind_session(module);
}
