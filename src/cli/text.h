// Numbers as people write and read them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tide::cli {

// "262144", "256KiB", "1.5 MiB", "2GB": bytes. Throws Error(invalid_argument) naming `option` and the value.
int64_t parse_bytes(std::string_view option, std::string_view text);

std::string bytes_text(int64_t bytes);   // "1.50 MiB"
std::string count_text(int64_t number);  // "8,030,261,248"

}  // namespace tide::cli
