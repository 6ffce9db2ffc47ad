// tide doctor: what this machine can do, what is missing and how to get it.
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "cli/commands.h"
#include "cli/text.h"
#include "fmt/format.h"

namespace tide::cli {
namespace {

enum class Standing { ok, info, missing, broken };  // missing: something optional is lost; broken: the core cannot run

struct Finding {
  std::string what;
  Standing standing = Standing::ok;
  std::string value;
  std::string advice;
};

std::string_view name(Standing standing) {
  switch (standing) {
    case Standing::ok:
      return "ok";
    case Standing::info:
      return "info";
    case Standing::missing:
      return "missing";
    case Standing::broken:
      return "broken";
  }
  return "?";
}

// First line that a command prints, "" when it fails. No shell input from outside: every command is a literal below.
std::string first_line(const char* command) {
  FILE* pipe = ::popen(command, "r");
  if (pipe == nullptr) return {};
  std::array<char, 256> line{};
  const bool got = std::fgets(line.data(), static_cast<int>(line.size()), pipe) != nullptr;
  const bool fine = ::pclose(pipe) == 0;
  std::string text = got && fine ? line.data() : "";
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  return text;
}

std::string field_of(const char* path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.rfind(key, 0) != 0) continue;
    const size_t value = line.find_first_not_of(" \t:", key.size());
    return value == std::string::npos ? "" : line.substr(value);
  }
  return {};
}

Finding system_call(const std::string& what, bool works, const std::string& advice) {
  if (works) return {what, Standing::ok, "works", ""};
  return {what, Standing::broken, std::strerror(errno), advice};
}

void kernel(std::vector<Finding>& findings) {
  utsname system{};
  ::uname(&system);
  findings.push_back(
      {"kernel", Standing::info, fmt::format("{} {} {}", system.sysname, system.release, system.machine), ""});
  const int memory = ::memfd_create("tide doctor", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  findings.push_back(
      system_call("sealed shared memory",
                  memory >= 0 && ::fallocate(memory, 0, 0, 4096) == 0 &&
                      ::fcntl(memory, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0,
                  "windows need memfd_create with seals: run on Linux 3.17 or newer, or relax the container"));
  if (memory >= 0) ::close(memory);
  const long pidfd = ::syscall(SYS_pidfd_open, ::getpid(), 0);
  findings.push_back(
      system_call("death of peers (pidfd)", pidfd >= 0, "run on Linux 5.3 or newer, or relax the container"));
  if (pidfd >= 0) ::close(static_cast<int>(pidfd));
}

void memory_and_limits(std::vector<Finding>& findings) {
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  findings.push_back({"open files", files.rlim_cur < 256 ? Standing::missing : Standing::ok,
                      std::to_string(files.rlim_cur),
                      files.rlim_cur < 256 ? "a session takes three descriptors a rank: ulimit -n 1024" : ""});
  findings.push_back({"memory available", Standing::info, field_of("/proc/meminfo", "MemAvailable"), ""});
  struct statvfs shm {};
  if (::statvfs("/dev/shm", &shm) == 0) {
    const auto free = static_cast<int64_t>(shm.f_bavail * shm.f_frsize);
    findings.push_back({"/dev/shm free", Standing::info, bytes_text(free), ""});
  }
  findings.push_back({"huge pages", Standing::info, field_of("/proc/meminfo", "HugePages_Total"), ""});
  std::ifstream mode("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
  std::string shmem;
  std::getline(mode, shmem);
  findings.push_back(
      {"transparent huge pages of shared memory", Standing::info, shmem.empty() ? "unknown" : shmem, ""});
}

void processors(std::vector<Finding>& findings) {
  std::istringstream flags(field_of("/proc/cpuinfo", "flags"));
  std::string simd;
  for (std::string flag; flags >> flag;) {
    for (const char* known : {"sse4_1", "avx2", "f16c", "avx512f", "avx512_bf16", "amx_bf16"}) {
      if (flag == known) simd += (simd.empty() ? "" : " ") + flag;
    }
  }
  findings.push_back({"cores", Standing::info, std::to_string(std::thread::hardware_concurrency()), ""});
  findings.push_back({"vector units", Standing::info, simd.empty() ? "none that is known" : simd, ""});
  std::ifstream online("/sys/devices/system/node/online");
  std::string nodes;
  std::getline(online, nodes);
  findings.push_back({"NUMA nodes", Standing::info, nodes.empty() ? "0" : nodes, ""});
}

void software(std::vector<Finding>& findings) {
  const auto optional = [&](const std::string& what, const std::string& found, const std::string& advice) {
    findings.push_back({what, found.empty() ? Standing::missing : Standing::ok, found.empty() ? "not found" : found,
                        found.empty() ? advice : ""});
  };
  optional(
      "PyTorch",
      first_line("timeout 60 python3 -c 'import importlib.metadata as m; print(m.version(\"torch\"))' 2>/dev/null"),
      "tide.fsdp is lost: make setup, then activate .venv");
  optional("UCX", first_line("ldconfig -p 2>/dev/null | grep -o 'libucp.so[.0-9]*' | head -n 1"),
           "nothing yet: rails between machines are not part of this form");
  optional("nvcc", first_line("nvcc --version 2>/dev/null | grep release"),
           "nothing yet: the CUDA runtime is not part of this form");
}

int run_doctor(bool json) {
  std::vector<Finding> findings;
  kernel(findings);
  memory_and_limits(findings);
  processors(findings);
  software(findings);
  bool broken = false;
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Finding& f : findings) {
    broken = broken || f.standing == Standing::broken;
    if (json) {
      list.push_back({{"what", f.what}, {"standing", name(f.standing)}, {"value", f.value}, {"advice", f.advice}});
    } else {
      fmt::print("{:<8} {:<40} {}{}\n", name(f.standing), f.what, f.value, f.advice.empty() ? "" : "  -> " + f.advice);
    }
  }
  if (json) fmt::print("{}\n", nlohmann::ordered_json{{"ok", !broken}, {"findings", list}}.dump(2));
  return broken ? 1 : 0;
}

}  // namespace

void add_doctor(CLI::App& app, Run& run) {
  auto json = std::make_shared<bool>(false);
  CLI::App* command = app.add_subcommand("doctor", "What this machine can do, what is missing and how to get it");
  command->add_flag("--json", *json, "Print JSON");
  command->callback([json, &run] { run = [json] { return run_doctor(*json); }; });
}

}  // namespace tide::cli
