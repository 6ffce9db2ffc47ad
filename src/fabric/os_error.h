// Refusals of the operating system as errors of the library.
#pragma once

#include <string>

#include "tide/error.h"

namespace tide::fabric {

// no_space for the lack of memory, disk or descriptors, else system. The sentence: "cannot <doing>: <why>", and what to
// do where that is known.
Error os_error(const std::string& doing, int number);

}  // namespace tide::fabric
