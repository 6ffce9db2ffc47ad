// Starting the ranks of a job on this machine and seeing them to their end.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace tide::fabric {

struct LaunchOptions {
  int32_t ranks = 1;
  std::vector<std::string> command;  // program, found in PATH, and its arguments; no shell
  std::string job;                   // empty: a random name
  // After the first failure, the others have this long to notice and to report; then they are told to end (SIGTERM),
  // and after `stop_grace` more they are killed.
  std::chrono::milliseconds failure_grace{10'000};
  std::chrono::milliseconds stop_grace{5'000};
};

// Starts `ranks` processes with TIDE_RANK, TIDE_WORLD, TIDE_STORE and TIDE_JOB set, each in a process group of its own,
// and waits for all. Output is theirs, untouched. Standard input goes to rank 0 unless it is a terminal. SIGINT,
// SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 sent to this process go to every rank; the first four also end the
// job, with failure_grace replaced by stop_grace, and a second one kills it. Should this process be killed, the kernel
// kills the ranks. Leaves no process, zombie, folder or socket.
//
// Returns 0, or the status of the rank that failed first (128 + signal when a signal ended it), or 128 + signal when a
// signal ended the job. Throws Error(invalid_argument) when the command cannot be run, Error(no_space | system).
int launch(const LaunchOptions& options);

}  // namespace tide::fabric
