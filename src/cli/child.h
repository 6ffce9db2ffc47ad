// Asking another process, which may hang or crash where this one must not.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

namespace tide::cli {

struct Answer {
  std::string text;  // of its standard output, without the line end at the end
  bool ended = false;
  int status = -1;  // exit status; -1 when a signal ended it or it was stopped after the time
};

// Runs a program, found in PATH, without a shell and without input. What it writes to stderr is dropped.
Answer ask(const std::vector<std::string>& command, std::chrono::milliseconds patience);

// Runs a function in a forked child and takes the text that it returns. Only while this process has one thread.
Answer ask(const std::function<std::string()>& question, std::chrono::milliseconds patience);

}  // namespace tide::cli
