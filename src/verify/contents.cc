#include "verify/contents.h"

#include "fmt/format.h"

namespace tide::verify {

std::string describe(const Content& content) {
  switch (content.made) {
    case Made::shard:
      return fmt::format("element {} of version {} of rank {}'s shard of tensor {} of group {} as {}",
                         content.element(), content.version, content.rank, content.param, content.group,
                         name(content.dtype));
    case Made::gradient:
      return fmt::format("element {} of rank {}'s gradient of tensor {} of group {} of backward {}", content.element(),
                         content.rank, content.param, content.group, content.version);
    case Made::partial:
      return fmt::format("a sum for element {}", content.element());
    case Made::zero:
      return "zeros";
    case Made::garbage:
      return "bytes of no element";
  }
  return "?";
}

}  // namespace tide::verify
