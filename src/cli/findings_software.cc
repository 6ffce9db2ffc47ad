// Software beside the library, none of which the core needs.
#include <dlfcn.h>

#include <cstdlib>
#include <string>

#include "cli/child.h"
#include "cli/findings.h"
#include "cli/text.h"
#include "fmt/format.h"

namespace tide::cli {
namespace {

using std::chrono::seconds;

// The version first: an import takes seconds, and where it fails or does not end in time, that is worth telling too.
constexpr const char* kTorch =
    "import importlib.metadata as m; print(m.version('torch'), flush=True); import torch; print('imported')";

std::string python() {
  const char* environment = std::getenv("VIRTUAL_ENV");
  return environment == nullptr || *environment == '\0' ? "python3" : std::string(environment) + "/bin/python3";
}

Finding torch() {
  const std::string interpreter = python();
  const Answer answer = ask({interpreter, "-c", kTorch}, seconds(15));
  const std::string lost = "tide.fsdp: fully_shard stays on stock collectives";
  const std::string version = excerpt(answer.text.substr(0, answer.text.find('\n')));
  if (version.empty()) {
    const bool absent = answer.ended && answer.status == 127;
    return {"PyTorch", Standing::missing,
            absent ? fmt::format("no {}", interpreter) : fmt::format("not in {}", interpreter), lost,
            "make setup, then . .venv/bin/activate"};
  }
  if (answer.status == 0) return {"PyTorch", Standing::ok, fmt::format("{} ({})", version, interpreter), "", ""};
  if (!answer.ended) {
    return {"PyTorch", Standing::ok, fmt::format("{} ({}; its import takes over 15 s)", version, interpreter), "", ""};
  }
  return {"PyTorch", Standing::missing, fmt::format("{} is there, but its import fails", version), lost,
          fmt::format("see what {} -c 'import torch' prints", interpreter)};
}

// Opened in a child: libraries of this kind start threads, hook the allocator and print.
std::string version_of(const char* library, const std::function<std::string(void*)>& version) {
  return ask(
             [&]() -> std::string {
               void* handle = ::dlopen(library, RTLD_NOW | RTLD_LOCAL);
               return handle == nullptr ? "" : version(handle);
             },
             seconds(10))
      .text;
}

Finding optional(const std::string& what, const std::string& version, const std::string& advice) {
  if (!version.empty()) return {what, Standing::ok, excerpt(version), "", ""};
  return {what, Standing::missing, "not found", "nothing in this form, which covers one node and no GPU", advice};
}

Finding ucx() {
  const std::string version = version_of("libucp.so.0", [](void* handle) -> std::string {
    using Version = const char* (*)();
    const auto get = reinterpret_cast<Version>(::dlsym(handle, "ucp_get_version_string"));
    return get == nullptr ? "found" : get();
  });
  return optional("UCX", version, "apt-get install libucx0");
}

Finding nccl() {
  const std::string version = version_of("libnccl.so.2", [](void* handle) -> std::string {
    using Version = int (*)(int*);
    const auto get = reinterpret_cast<Version>(::dlsym(handle, "ncclGetVersion"));
    int number = 0;
    if (get == nullptr || get(&number) != 0) return "found";
    return fmt::format("{}.{}.{}", number / 10000, number / 100 % 100, number % 100);
  });
  return optional("NCCL", version, "install libnccl2, or a PyTorch that brings it");
}

Finding nvcc() {
  std::string text = ask({"nvcc", "--version"}, seconds(10)).text;
  const size_t release = text.find("release ");
  if (release == std::string::npos) text.clear();
  if (!text.empty()) text = text.substr(release, text.find(',', release) - release);
  return optional("nvcc", text, "install the CUDA toolkit");
}

}  // namespace

void look_at_software(Findings& findings) {
  findings.push_back(torch());
  findings.push_back(ucx());
  findings.push_back(nccl());
  findings.push_back(nvcc());
}

}  // namespace tide::cli
