// The one error type of the library.
//
// Every failure that a caller can see is a tide::Error: a code to branch on and one sentence that says what
// is wrong, with the offending field and value, and what to do about it. Nothing is half-done when one is
// thrown: outputs passed by the caller are untouched by argument errors, and undefined only after a runtime
// failure of a collective (peer_lost, timeout, mismatch, aborted), which also ends the session.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace tide {

enum class ErrorCode {
  invalid_argument,  // a value given to the API or in a file is wrong; fix the call or the file
  unsupported,       // understood, but this build or this form cannot do it
  mismatch,          // ranks disagree: on a group, an option, a version or on the order of calls
  no_space,          // memory, descriptors or shared memory ran out
  peer_lost,         // a peer process died or closed its session
  timeout,           // a deadline passed
  aborted,           // another rank failed first; its own error names the cause
  closed,            // the session was closed, or belongs to a parent process (use after fork)
  check_failed,      // a verifier or a comparison found a violation
  system,            // the operating system refused something that has no better code
};

std::string_view name(ErrorCode code);

// True for failures of the surroundings (peer_lost, timeout, aborted, no_space, system): a caller may restart
// and try again. False for errors that the same call would meet again.
bool recoverable(ErrorCode code);

class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& sentence) : std::runtime_error(sentence), code_(code) {}
  ErrorCode code() const { return code_; }

 private:
  ErrorCode code_;
};

}  // namespace tide
