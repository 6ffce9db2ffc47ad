// Processors, and the instruction sets that kernels choose from.
#include <hwy/targets.h>
#include <sched.h>

#include <fstream>
#include <thread>

#include "cli/findings.h"
#include "fmt/format.h"

namespace tide::cli {
namespace {

// Best first, as Highway numbers them.
std::string instruction_sets() {
  std::string text;
  for (auto left = static_cast<uint64_t>(hwy::SupportedTargets()); left != 0; left &= left - 1) {
    const auto target = static_cast<int64_t>(left & (~left + 1));
    text += fmt::format("{}{}", text.empty() ? "" : ", ", hwy::TargetName(target));
  }
  return text;
}

}  // namespace

void look_at_processors(Findings& findings) {
  cpu_set_t allowed;
  const bool known = ::sched_getaffinity(0, sizeof(allowed), &allowed) == 0;
  const auto all = std::thread::hardware_concurrency();
  findings.push_back({"processors", Standing::info,
                      known ? fmt::format("{} for this process", CPU_COUNT(&allowed)) : fmt::format("{}", all), "",
                      ""});
  const std::string sets = instruction_sets();
  findings.push_back({"vector instructions", Standing::info, sets.empty() ? "none" : sets, "", ""});
  std::ifstream online("/sys/devices/system/node/online");
  std::string nodes;
  std::getline(online, nodes);
  findings.push_back({"NUMA nodes", Standing::info, nodes.empty() ? "unknown" : nodes, "", ""});
}

}  // namespace tide::cli
