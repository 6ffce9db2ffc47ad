// A tide::Store over a Python object.
#pragma once

#include <nanobind/nanobind.h>

#include <chrono>
#include <memory>
#include <string>

#include "tide/session.h"

namespace tide::python {

// `object` has set(key, bytes) and get(key) -> bytes, and, to wait with a deadline, wait([key], timedelta): PyTorch's
// c10d stores do. Without wait(), get() itself must wait. Its methods may be called from any thread; they take the GIL.
std::shared_ptr<Store> make_store(nanobind::object object);

}  // namespace tide::python
