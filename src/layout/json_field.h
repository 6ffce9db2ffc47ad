// Reading JSON that people write: every complaint names the field, its value and what to give instead.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include "nlohmann/json.hpp"

namespace tide {

constexpr int64_t kMostJsonBytes = int64_t{64} << 20;

// Parses `text`, called `what` in complaints. Throws Error(invalid_argument), with the byte position, for text over
// kMostJsonBytes, broken or cut JSON, bytes that are not UTF-8, more than 32 levels, more than 2^24 values or a field
// that is given twice.
nlohmann::json parse_json(std::string_view text, std::string_view what);

// `text` as JSON spells it: quoted, ASCII, on one line; bytes that are not UTF-8 become U+FFFD.
std::string json_string(std::string_view text);

// A value and its path from the root. The JSON that it points to must outlive it.
class JsonField {
 public:
  // `root` is the name of the whole, without which paths of its fields start: "groups[0].name".
  JsonField(const nlohmann::json& value, std::string root) : value_(&value), path_(std::move(root)), is_root_(true) {}

  // All throw Error(invalid_argument).
  void fields(std::initializer_list<std::string_view> known) const;  // an object, with no fields but these
  JsonField at(std::string_view key) const;                          // the field exists
  std::optional<JsonField> find(std::string_view key) const;
  int64_t size(int64_t most) const;  // an array of at most this many
  JsonField operator[](int64_t index) const;
  int64_t integer(int64_t least, int64_t most) const;
  bool boolean() const;
  std::string text() const;                    // a string
  std::string name(int64_t most_bytes) const;  // a string, not empty, at most this long, without control characters

  // "PATH is VALUE: `advice`".
  [[noreturn]] void refuse(std::string_view advice) const;
  const std::string& path() const { return path_; }

 private:
  JsonField(const nlohmann::json& value, std::string path, bool is_root)
      : value_(&value), path_(std::move(path)), is_root_(is_root) {}
  std::string path_of(std::string_view key) const;

  const nlohmann::json* value_;
  std::string path_;
  bool is_root_;
};

}  // namespace tide
