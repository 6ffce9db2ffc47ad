#include "tide/program.h"

namespace tide {

std::string_view name(Collective collective) {
  switch (collective) {
    case Collective::all_gather:
      return "all-gather";
    case Collective::release:
      return "release";
    case Collective::reduce_scatter:
      return "reduce-scatter";
  }
  return "?";
}

std::string_view name(OpKind kind) {
  switch (kind) {
    case OpKind::copy:
      return "copy";
    case OpKind::cast:
      return "cast";
    case OpKind::put:
      return "put";
    case OpKind::signal:
      return "signal";
    case OpKind::wait:
      return "wait";
    case OpKind::sum:
      return "sum";
    case OpKind::land:
      return "land";
    case OpKind::zero:
      return "zero";
    case OpKind::record:
      return "record";
    case OpKind::join:
      return "join";
  }
  return "?";
}

std::string_view name(Reach reach) {
  switch (reach) {
    case Reach::self:
      return "self";
    case Reach::local:
      return "local";
    case Reach::node:
      return "node";
    case Reach::rail:
      return "rail";
  }
  return "?";
}

std::string_view name(Scope scope) {
  switch (scope) {
    case Scope::call:
      return "call";
    case Scope::rank:
      return "rank";
    case Scope::node:
      return "node";
  }
  return "?";
}

}  // namespace tide
