#include "plan/fnv.h"
#include "tide/plan.h"

namespace tide {

uint64_t fingerprint(const Layout& layout) {
  Fnv hash;
  hash.add(layout.group().name);
  hash.add(static_cast<int64_t>(layout.group().tensors.size()));
  for (const TensorSpec& tensor : layout.group().tensors) {
    hash.add(tensor.name);
    hash.add(static_cast<int64_t>(tensor.shape.size()));
    for (const int64_t extent : tensor.shape) hash.add(extent);
    hash.add(name(tensor.dtype));
    hash.add(int64_t{tensor.trainable});
  }
  const LayoutOptions& options = layout.options();
  hash.add(options.world);
  hash.add(options.alignment);
  // Without a cast the dtype to cast to says nothing.
  hash.add(options.cast ? name(options.gather_dtype) : "as stored");
  return hash.value();
}

uint64_t fingerprint(const Plan& plan) {
  Fnv hash;
  hash.add(int64_t{plan.version});
  hash.add(int64_t{plan.nodes});
  hash.add(int64_t{plan.local});
  hash.add(name(plan.landing));
  hash.add(int64_t{plan.ring_depth});
  hash.add(plan.alignment);
  hash.add(plan.chunk_bytes);
  hash.add(int64_t{plan.staging_slots});
  hash.add(int64_t{plan.passes});
  return hash.value();
}

}  // namespace tide
