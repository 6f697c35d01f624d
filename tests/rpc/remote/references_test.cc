// The forks of references, message by message.

#include "rpc/remote/rref/references.h"

#include <memory>
#include <string>
#include <vector>

#include "tests/rpc/remote/cluster.h"
#include "tests/testing/status_matchers.h"

namespace tandem::rpc::remote {
namespace {

using testing::Cluster;
using testing::Eventually;

class ReferencesTest : public ::testing::Test {
 protected:
  ReferencesTest() {
    cluster.Add({});
    cluster.Add({});
    value = cluster[0].Own(std::make_shared<std::string>("value"));
  }
  // A reference as it is sent to worker/1; the sender's own part is over at once.
  std::string Sent() {
    MessageReferences message(cluster[0].shared_references(), "worker/1");
    absl::StatusOr<std::string> wire = message.Send(value.handle());
    TANDEM_EXPECT_OK(wire);
    return wire.value_or("");
  }
  size_t Holders() {
    const std::vector<DebugRef> refs = cluster[0].references().DebugRefs();
    return refs.size() == 1 ? refs[0].holders.size() : 99;
  }
  // Whatever was to be told to the owner has been.
  bool Settled() { return cluster[1].references().AwaitConfirmed(absl::Now() + kPatience); }

  Cluster cluster;
  RRef<std::string> value;
};

TEST_F(ReferencesTest, AMessageThatComesTwiceIsOneReference) {
  const std::string wire = Sent();
  TANDEM_ASSERT_OK_AND_ASSIGN(auto first, cluster[1].references().Receive(wire));
  TANDEM_ASSERT_OK_AND_ASSIGN(auto again, cluster[1].references().Receive(wire));
  EXPECT_EQ(cluster[1].references().held(), 1);
  first.reset();
  ASSERT_TRUE(Settled());
  EXPECT_EQ(Holders(), 1);
  again.reset();
  EXPECT_TRUE(Eventually([this] { return Holders() == 0; }));
}

TEST_F(ReferencesTest, AMessageThatComesAgainWhenItsReferenceWasGivenUpIsAnother) {
  const std::string wire = Sent();
  TANDEM_ASSERT_OK_AND_ASSIGN(auto first, cluster[1].references().Receive(wire));
  first.reset();
  ASSERT_TRUE(Eventually([this] { return Holders() == 0; }));
  TANDEM_ASSERT_OK_AND_ASSIGN(auto again, cluster[1].references().Receive(wire));
  EXPECT_TRUE(Eventually([this] { return Holders() == 1; }));
  again.reset();
  EXPECT_TRUE(Eventually([this] { return Holders() == 0; }));
}

}  // namespace
}  // namespace tandem::rpc::remote
