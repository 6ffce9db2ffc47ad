#include "tide/error.h"

namespace tide {

std::string_view name(ErrorCode code) {
  switch (code) {
    case ErrorCode::invalid_argument:
      return "invalid_argument";
    case ErrorCode::unsupported:
      return "unsupported";
    case ErrorCode::mismatch:
      return "mismatch";
    case ErrorCode::no_space:
      return "no_space";
    case ErrorCode::peer_lost:
      return "peer_lost";
    case ErrorCode::timeout:
      return "timeout";
    case ErrorCode::aborted:
      return "aborted";
    case ErrorCode::closed:
      return "closed";
    case ErrorCode::check_failed:
      return "check_failed";
    case ErrorCode::system:
      return "system";
  }
  return "unknown";
}

bool recoverable(ErrorCode code) {
  switch (code) {
    case ErrorCode::no_space:
    case ErrorCode::peer_lost:
    case ErrorCode::timeout:
    case ErrorCode::aborted:
    case ErrorCode::system:
      return true;
    default:
      return false;
  }
}

}  // namespace tide
