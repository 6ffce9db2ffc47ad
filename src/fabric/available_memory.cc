#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <string>

#include "fabric/window.h"

namespace tide::fabric {
namespace {

// The number after `name` at the start of a line.
std::optional<int64_t> field(const std::string& path, const std::string& name) {
  std::ifstream file(path);
  std::string word;
  while (file >> word) {
    int64_t value = 0;
    if (word == name) return file >> value ? std::optional(value) : std::nullopt;
    file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return {};
}

std::optional<int64_t> number(const std::string& path) {
  std::ifstream file(path);
  int64_t value = 0;
  if (file >> value) return value;
  return {};  // also "max"
}

// Path of this process in the unified hierarchy, "" for its root.
std::string control_group() {
  std::ifstream file("/proc/self/cgroup");
  std::string line;
  while (std::getline(file, line)) {
    if (line.starts_with("0::/")) return line == "0::/" ? "" : line.substr(3);
  }
  return "";
}

}  // namespace

std::optional<int64_t> available_memory() {
  std::optional<int64_t> available = field("/proc/meminfo", "MemAvailable:");
  if (available) *available *= 1024;
  // A limit of any group above counts too.
  for (std::string group = control_group();; group.resize(group.rfind('/'))) {
    const std::string folder = "/sys/fs/cgroup" + group;
    const std::optional<int64_t> limit = number(folder + "/memory.max");
    const std::optional<int64_t> used = number(folder + "/memory.current");
    if (limit && used) {
      // What the kernel can drop from the page cache is free.
      const int64_t cached = field(folder + "/memory.stat", "inactive_file").value_or(0);
      const int64_t left = std::max<int64_t>(0, *limit - std::max<int64_t>(0, *used - cached));
      available = std::min(available.value_or(left), left);
    }
    if (group.empty()) return available;
  }
}

}  // namespace tide::fabric
