// Numbers as people write and read them.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

namespace tide::cli {

// The readers below throw Error(invalid_argument) naming `option`, the value and what may be given.

// "12", "-3": a whole number from `least` to `most`.
int64_t parse_whole(std::string_view option, std::string_view text, int64_t least,
                    int64_t most = std::numeric_limits<int64_t>::max());

// "262144", "256KiB", "1.5 MiB", "2GB": bytes.
int64_t parse_bytes(std::string_view option, std::string_view text);

// "2.5": seconds from 0 to `most`.
double parse_seconds(std::string_view option, std::string_view text, double most);

// Text from outside on one line: short, control characters shown as '?'.
std::string excerpt(std::string_view text);

std::string bytes_text(int64_t bytes);                      // "1.50 MiB"
std::string exact_bytes_text(int64_t bytes);                // "1.50 MiB (1,572,864 B)"
std::string count_text(int64_t number);                     // "8,030,261,248"
std::string plural(int64_t number, std::string_view noun);  // "1 copy", "2,048 copies"
std::string shortened(std::string_view text,
                      size_t width);  // at most `width` characters, the end kept as it tells more

}  // namespace tide::cli
