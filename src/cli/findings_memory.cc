// Memory, and the limits that the system sets on it and on descriptors.
#include <sys/resource.h>
#include <sys/statvfs.h>

#include <fstream>
#include <sstream>

#include "cli/findings.h"
#include "cli/text.h"
#include "fabric/window.h"
#include "fmt/format.h"

namespace tide::cli {
namespace {

constexpr rlim_t kFilesOfAFewRanks = 256;

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::string limit_text(rlim_t limit) {
  return limit == RLIM_INFINITY ? "no limit" : count_text(static_cast<int64_t>(limit));
}

// Folder of this process's control group in the unified hierarchy.
std::string control_group() {
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("0::/")) return "/sys/fs/cgroup" + line.substr(3);
  }
  return "";
}

Finding control_group_limits() {
  const std::string folder = control_group();
  const std::string memory = folder.empty() ? "" : first_line(folder + "/memory.max");
  const std::string processors = folder.empty() ? "" : first_line(folder + "/cpu.max");
  std::string text;
  if (!memory.empty() && memory != "max") {
    text = fmt::format("memory {}", bytes_text(std::strtoll(memory.c_str(), nullptr, 10)));
  }
  std::istringstream quota(processors);
  double used = 0;
  double period = 0;
  if (quota >> used >> period && period > 0) {
    text += fmt::format("{}{:.3g} processors", text.empty() ? "" : ", ", used / period);
  }
  return {"limits of the control group", Standing::info, text.empty() ? "none found" : text, "", ""};
}

std::string field_of(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(key)) continue;
    const size_t value = line.find_first_not_of(" \t:", key.size());
    return value == std::string::npos ? "" : line.substr(value);
  }
  return "";
}

}  // namespace

void look_at_memory(Findings& findings) {
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  if (files.rlim_cur < kFilesOfAFewRanks) {
    findings.push_back({"open files", Standing::missing, limit_text(files.rlim_cur),
                        "sessions of many ranks, which take a few descriptors a rank", "ulimit -n 1024"});
  } else {
    findings.push_back({"open files", Standing::ok, limit_text(files.rlim_cur), "", ""});
  }
  rlimit locked{};
  ::getrlimit(RLIMIT_MEMLOCK, &locked);
  findings.push_back({"locked memory", Standing::info,
                      locked.rlim_cur == RLIM_INFINITY ? "no limit" : bytes_text(static_cast<int64_t>(locked.rlim_cur)),
                      "", ""});
  const auto available = fabric::available_memory();
  findings.push_back({"memory available", Standing::info, available ? bytes_text(*available) : "unknown", "", ""});
  findings.push_back(control_group_limits());
  struct statvfs shared {};
  if (::statvfs("/dev/shm", &shared) == 0) {
    findings.push_back(
        {"/dev/shm free", Standing::info, bytes_text(static_cast<int64_t>(shared.f_bavail * shared.f_frsize)), "", ""});
  }
  findings.push_back({"huge pages", Standing::info, field_of("/proc/meminfo", "HugePages_Total"), "", ""});
  const std::string mode = first_line("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
  findings.push_back({"huge pages of shared memory", Standing::info, mode.empty() ? "unknown" : mode, "", ""});
}

}  // namespace tide::cli
