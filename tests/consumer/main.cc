#include <tide/session.h>
#include <tide/version.h>

#include <cstdio>

int main() {
  tide::Session session({});
  const tide::GroupId layer = session.register_group({"layer", {{"weight", {3}}}}, {});
  session.commit();
  const float shard[3] = {1, 2, 3};
  const void* shards[] = {shard};
  session.all_gather(layer, shards);
  const float last = static_cast<const float*>(session.landing(layer, 0))[2];
  std::printf("tide %s: the last element is %g\n", TIDE_VERSION, last);
  return last == 3 ? 0 : 1;
}
