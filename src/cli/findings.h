// What tide doctor finds out about a machine, by area.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tide::cli {

enum class Standing {
  ok,
  info,     // a fact, good or bad for nothing
  missing,  // something optional is lost
  broken,   // sessions cannot run
};
std::string_view name(Standing standing);

struct Finding {
  std::string what;
  Standing standing = Standing::ok;
  std::string value;
  std::string lost;    // missing, broken: what does not work
  std::string advice;  // missing, broken: how to get it
};
using Findings = std::vector<Finding>;

void look_at_kernel(Findings& findings);
void look_at_memory(Findings& findings);
void look_at_processors(Findings& findings);
void look_at_software(Findings& findings);

}  // namespace tide::cli
