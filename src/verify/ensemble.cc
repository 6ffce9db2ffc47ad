#include "tide/verify.h"

namespace tide {

Ensemble make_ensemble(const Plan& plan, std::vector<Layout> layouts, const std::vector<bool>& resident_shards,
                       DType grad_dtype) {
  Ensemble ensemble;
  ensemble.plan = plan;
  ensemble.layouts = std::move(layouts);
  ensemble.space = make_space(plan, ensemble.layouts, resident_shards);
  ensemble.grad_dtype = grad_dtype;
  const bool keeps = plan.landing == Landing::resident || plan.landing == Landing::home;
  for (size_t g = 0; g < ensemble.layouts.size(); ++g) {
    const Layout& layout = ensemble.layouts[g];
    const int32_t group = static_cast<int32_t>(g);
    Ensemble::GroupPrograms programs;
    for (int32_t rank = 0; rank < ensemble.world(); ++rank) {
      programs.gather_move.push_back(all_gather(plan, ensemble.space, layout, group, rank, Pieces::move));
      if (keeps) programs.gather_keep.push_back(all_gather(plan, ensemble.space, layout, group, rank, Pieces::keep));
      programs.release.push_back(release(plan, ensemble.space, layout, group, rank));
      programs.reduce.push_back(reduce_scatter(plan, ensemble.space, layout, rank, grad_dtype, {}));
    }
    ensemble.programs.push_back(std::move(programs));
  }
  return ensemble;
}

}  // namespace tide
