// tide::Session and tide::Layout in Python.
#pragma once

#include <nanobind/nanobind.h>

namespace tide::python {

void bind_session(nanobind::module_& module);

}  // namespace tide::python
