#include "layout/json_field.h"

#include <algorithm>
#include <limits>
#include <set>
#include <vector>

#include "fmt/format.h"
#include "fmt/ranges.h"
#include "tide/error.h"

namespace tide {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMostDepth = 32;
constexpr int64_t kMostValues = int64_t{1} << 24;
constexpr size_t kMostShown = 64;

[[noreturn]] void refuse_text(const std::string& sentence) { throw Error(ErrorCode::invalid_argument, sentence); }

// Short and on one line, whatever the text holds.
std::string excerpt(std::string_view text) {
  return json_string(text.substr(0, kMostShown)) + (text.size() > kMostShown ? "..." : "");
}

std::string shown(const Json& value) {
  if (value.is_string()) return excerpt(value.get_ref<const std::string&>());
  if (value.is_array()) return fmt::format("an array of {}", value.size());
  if (value.is_object()) return fmt::format("an object of {} fields", value.size());
  return value.dump();
}

// Before any of it is built. A text that is no JSON may be counted wrong, but only behind the byte that the parser
// refuses.
void check_limits(std::string_view text, std::string_view what) {
  int64_t depth = 0;
  int64_t values = 1;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
      continue;
    }
    if (c == '"') in_string = true;
    if (c == '[' || c == '{') ++depth;
    if (c == ']' || c == '}') --depth;
    if (c == '[' || c == '{' || c == ',') ++values;
    if (depth > kMostDepth) refuse_text(fmt::format("{} is more than {} levels deep: flatten it", what, kMostDepth));
    if (values > kMostValues) refuse_text(fmt::format("{} has more than {} values: split it", what, kMostValues));
  }
}

// Watches a parse for fields that are given twice, of which the parser would take the last.
class Fields {
 public:
  explicit Fields(std::string_view what) : what_(what) {}

  void operator()(Json::parse_event_t event, const Json& parsed) {
    if (event == Json::parse_event_t::object_start) open_.emplace_back();
    if (event == Json::parse_event_t::object_end) open_.pop_back();
    if (event != Json::parse_event_t::key) return;
    const auto& key = parsed.get_ref<const std::string&>();
    if (!open_.back().insert(key).second) {
      refuse_text(fmt::format("{} gives the field {} twice in one object: give it once", what_, excerpt(key)));
    }
  }

 private:
  std::string_view what_;
  std::vector<std::set<std::string>> open_;  // keys of the objects that are open
};

}  // namespace

std::string json_string(std::string_view text) {
  return Json(std::string(text)).dump(-1, ' ', true, Json::error_handler_t::replace);
}

Json parse_json(std::string_view text, std::string_view what) {
  if (static_cast<int64_t>(text.size()) > kMostJsonBytes) {
    refuse_text(fmt::format("{} has {} bytes: give at most {}", what, text.size(), kMostJsonBytes));
  }
  check_limits(text, what);
  try {
    return Json::parse(text.begin(), text.end(),
                       [fields = Fields(what)](int, Json::parse_event_t event, const Json& parsed) mutable {
                         fields(event, parsed);
                         return true;
                       });
  } catch (const Json::parse_error& error) {
    if (error.byte > text.size()) {
      refuse_text(fmt::format("{} ends at byte {} in the middle of its JSON: give the whole text", what, text.size()));
    }
    refuse_text(fmt::format("{} is not JSON at byte {} of {}: correct it there", what, error.byte, text.size()));
  } catch (const Json::exception&) {
    // What is left is a number too large for any floating type.
    refuse_text(fmt::format("{} holds a number that is out of range: give whole numbers below 2^61", what));
  }
}

std::string JsonField::path_of(std::string_view key) const {
  // A key can be any text when it is one that nobody knows.
  const std::string shown_key =
      key.size() > kMostShown || excerpt(key).size() != key.size() + 2 ? excerpt(key) : std::string(key);
  return is_root_ ? shown_key : fmt::format("{}.{}", path_, shown_key);
}

void JsonField::refuse(std::string_view advice) const {
  refuse_text(fmt::format("{} is {}: {}", path_, shown(*value_), advice));
}

void JsonField::fields(std::initializer_list<std::string_view> known) const {
  if (!value_->is_object()) refuse(fmt::format("give an object of {}", fmt::join(known, ", ")));
  for (const auto& item : value_->items()) {
    if (std::find(known.begin(), known.end(), item.key()) != known.end()) continue;
    refuse_text(fmt::format("{} is not a known field: use {}", path_of(item.key()), fmt::join(known, ", ")));
  }
}

std::optional<JsonField> JsonField::find(std::string_view key) const {
  const auto found = value_->find(std::string(key));
  if (found == value_->end()) return std::nullopt;
  return JsonField(*found, path_of(key), false);
}

JsonField JsonField::at(std::string_view key) const {
  auto found = find(key);
  if (!found) refuse_text(fmt::format("{} is missing: add it", path_of(key)));
  return *std::move(found);
}

int64_t JsonField::size(int64_t most) const {
  if (!value_->is_array()) refuse("give an array");
  if (static_cast<int64_t>(value_->size()) > most) refuse(fmt::format("give at most {}", most));
  return static_cast<int64_t>(value_->size());
}

JsonField JsonField::operator[](int64_t index) const {
  return {(*value_)[static_cast<size_t>(index)], fmt::format("{}[{}]", path_, index), false};
}

int64_t JsonField::integer(int64_t least, int64_t most) const {
  const bool fits = value_->is_number_integer() &&
                    (!value_->is_number_unsigned() ||
                     value_->get<uint64_t>() <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max()));
  if (!fits || value_->get<int64_t>() < least || value_->get<int64_t>() > most) {
    refuse(fmt::format("give a whole number from {} to {}", least, most));
  }
  return value_->get<int64_t>();
}

bool JsonField::boolean() const {
  if (!value_->is_boolean()) refuse("give true or false");
  return value_->get<bool>();
}

std::string JsonField::text() const {
  if (!value_->is_string()) refuse("give a string");
  return value_->get<std::string>();
}

std::string JsonField::name(int64_t most_bytes) const {
  std::string name = text();
  if (name.empty()) refuse("give a name");
  if (static_cast<int64_t>(name.size()) > most_bytes)
    refuse(fmt::format("give a name of at most {} bytes", most_bytes));
  for (const char c : name) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7F) refuse("give a name without control characters");
  }
  return name;
}

}  // namespace tide
