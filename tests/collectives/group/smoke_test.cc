#include <numeric>

#include "collectives/process_group.h"
#include "tests/conformance/collectives/reference_backend.h"
#include "tests/conformance/collectives/run_ranks.h"

namespace tandem::collectives {
namespace {

TEST(Smoke, Everything) {
  for (const char* backend : {"reference", "gloo", "auto"})
    for (int world : {1, 2, 3}) {
      ReferenceWorld reference;
      ProcessGroupOptions options;
      options.backend = backend;
      options.extra_backends = {reference.factory()};
      RunRanks(world, options, [&](ProcessGroup& group) {
        std::vector<float> values(10, group.rank() + 1);
        TANDEM_ASSERT_OK(group.AllReduce(absl::MakeSpan(values)).Wait());
        EXPECT_EQ(values[9], world * (world + 1) / 2);
        std::vector<Work> works;
        for (int i = 0; i < 10; ++i)
          works.push_back(group.AllReduce(absl::MakeSpan(values), {.op = ReduceOp::kMax, .async = true}));
        TANDEM_ASSERT_OK(group.Barrier().Wait());
        for (Work& w : works) TANDEM_EXPECT_OK(w.Wait());
        auto all = group.AllGatherBytes(std::string(group.rank() * 3, 'x'));
        TANDEM_ASSERT_OK(all);
        auto half = group.Split(group.rank() % 2, -group.rank());
        TANDEM_ASSERT_OK(half);
        TANDEM_ASSERT_OK((*half)->Barrier().Wait());
        if (world > 1) {
          const int next = (group.rank() + 1) % world, before = (group.rank() + world - 1) % world;
          Work receive = group.Irecv(absl::MakeSpan(values), before);
          std::vector<float> mine(10, group.rank());
          TANDEM_ASSERT_OK(group.Send(mine, next).Wait());
          TANDEM_ASSERT_OK(receive.Wait());
          EXPECT_EQ(values[0], before);
          EXPECT_EQ(receive.source_rank(), before);
        }
      });
    }
}

}  // namespace
}  // namespace tandem::collectives
