// tide::Error as the Python exception tide.Error.
#pragma once

#include <nanobind/nanobind.h>

namespace tide::python {

// Makes nanobind raise tide.Error (python/tide/_error.py) for tide::Error. Also adds `recoverable(code)` to the module.
void bind_errors(nanobind::module_& module);

}  // namespace tide::python
