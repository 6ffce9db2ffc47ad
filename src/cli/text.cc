#include "cli/text.h"

#include <array>
#include <charconv>
#include <cmath>

#include "fmt/format.h"
#include "tide/error.h"

namespace tide::cli {
namespace {

constexpr size_t kMostShown = 200;

struct Unit {
  std::string_view name;
  double bytes;
};
constexpr std::array<Unit, 11> kUnits{{{"", 1},
                                       {"B", 1},
                                       {"KiB", 1024.0},
                                       {"MiB", 1048576.0},
                                       {"GiB", 1073741824.0},
                                       {"TiB", 1099511627776.0},
                                       {"kB", 1e3},
                                       {"KB", 1e3},
                                       {"MB", 1e6},
                                       {"GB", 1e9},
                                       {"TB", 1e12}}};
// Up to here every whole number of bytes is a double.
constexpr double kMostBytes = 9007199254740992.0;

[[noreturn]] void refuse(std::string_view option, std::string_view text, const std::string& advice) {
  throw Error(ErrorCode::invalid_argument, fmt::format("{} is '{}': {}", option, excerpt(text), advice));
}

// The whole of `text` as a number.
template <typename Number>
bool read(std::string_view text, Number& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size();
}

bool continues(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

}  // namespace

int64_t parse_whole(std::string_view option, std::string_view text, int64_t least, int64_t most) {
  int64_t number = 0;
  if (read(text, number) && number >= least && number <= most) return number;
  const bool open = most == std::numeric_limits<int64_t>::max();
  refuse(option, text,
         open ? fmt::format("give a whole number, {} or more", least)
              : fmt::format("give a whole number from {} to {}", least, most));
}

int64_t parse_bytes(std::string_view option, std::string_view text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  std::string_view unit(end, static_cast<size_t>(text.data() + text.size() - end));
  while (!unit.empty() && unit.front() == ' ') unit.remove_prefix(1);
  for (const Unit& known : kUnits) {
    const double bytes = number * known.bytes;
    if (error != std::errc() || unit != known.name || bytes != std::floor(bytes) || bytes < 0 || bytes > kMostBytes) {
      continue;
    }
    return static_cast<int64_t>(bytes);
  }
  refuse(option, text, "give whole bytes, with a unit such as KiB, MiB or GB if you like");
}

double parse_seconds(std::string_view option, std::string_view text, double most) {
  double seconds = 0;
  if (read(text, seconds) && seconds >= 0 && seconds <= most) return seconds;
  refuse(option, text, fmt::format("give seconds from 0 to {}", most));
}

std::string excerpt(std::string_view text) {
  std::string shown;
  for (const char c : text.substr(0, kMostShown)) {
    const auto byte = static_cast<unsigned char>(c);
    shown.push_back(byte < 0x20 || byte == 0x7F ? '?' : c);
  }
  return text.size() > kMostShown ? shown + "..." : shown;
}

std::string bytes_text(int64_t bytes) {
  constexpr std::array<std::string_view, 6> kNames{"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < kNames.size()) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.2f} {}", value, kNames[unit]);
}

std::string exact_bytes_text(int64_t bytes) {
  return bytes < 1024 ? bytes_text(bytes) : fmt::format("{} ({} B)", bytes_text(bytes), count_text(bytes));
}

std::string count_text(int64_t number) {
  const std::string digits = std::to_string(number);
  const size_t sign = number < 0 ? 1 : 0;
  std::string text;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > sign && (digits.size() - i) % 3 == 0) text.push_back(',');
    text.push_back(digits[i]);
  }
  return text;
}

std::string plural(int64_t number, std::string_view noun) {
  if (number == 1) return fmt::format("1 {}", noun);
  if (noun.ends_with("py")) return fmt::format("{} {}ies", count_text(number), noun.substr(0, noun.size() - 1));
  return fmt::format("{} {}{}", count_text(number), noun, noun.ends_with("sh") ? "es" : "s");
}

std::string shortened(std::string_view text, size_t width) {
  size_t characters = 0;
  for (const char c : text) characters += continues(c) ? 0 : 1;
  if (characters <= width) return std::string(text);
  size_t begin = text.size();
  for (size_t kept = 0; kept + 3 < width;) {
    --begin;
    if (!continues(text[begin])) ++kept;
  }
  return fmt::format("...{}", text.substr(begin));
}

}  // namespace tide::cli
