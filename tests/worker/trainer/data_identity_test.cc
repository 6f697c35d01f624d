// SPDX-License-Identifier: Apache-2.0
#include "worker/trainer/data_identity.h"

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace tandem::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class DataIdentityTest : public ::testing::Test {
 protected:
  void Write(const std::string& name, const std::string& text) {
    std::ofstream(dir_.File(name), std::ios::binary) << text;
  }
  v1::DataIdentity Identify(const std::vector<std::string>& files) {
    DatasetOptions options{.train_files = files};
    options.schema.label = "y";
    options.schema.sparse = {{.column = "a"}};
    const absl::StatusOr<std::unique_ptr<Dataset>> dataset = Dataset::Open(options);
    EXPECT_TRUE(dataset.ok()) << dataset.status();
    const absl::StatusOr<v1::DataIdentity> identity = IdentifyData(options, **dataset, {});
    EXPECT_TRUE(identity.ok()) << identity.status();
    return *identity;
  }
  std::vector<std::string> Differences(const v1::DataIdentity& before, const v1::DataIdentity& now) {
    return CompareData(before, now).training;
  }

  testing::TempDir dir_;
};

TEST_F(DataIdentityTest, APatternIsTheFilesThatItMatchesInTheirOrder) {
  Write("d1.csv", "y,a\n1,x\n");
  Write("d2.csv", "y,a\n0,z\n");
  const v1::DataIdentity pattern = Identify({dir_.File("d*.csv")});
  EXPECT_THAT(Differences(pattern, Identify({dir_.File("d1.csv"), dir_.File("d2.csv")})), IsEmpty());
  EXPECT_THAT(Differences(pattern, Identify({dir_.File("d2.csv"), dir_.File("d1.csv")})),
              ElementsAre(HasSubstr("and 1 other file")));
  Write("d3.csv", "y,a\n1,w\n");
  EXPECT_THAT(Differences(pattern, Identify({dir_.File("d*.csv")})),
              ElementsAre(HasSubstr("data.train is 3 files")));
}

TEST_F(DataIdentityTest, ALineThatIsAppendedIsNoticed) {
  Write("d.csv", "y,a\n1,x\n");
  const v1::DataIdentity before = Identify({dir_.File("d.csv")});
  Write("d.csv", "y,a\n1,x\n0,x\n");
  EXPECT_THAT(Differences(before, Identify({dir_.File("d.csv")})),
              ElementsAre(HasSubstr("d.csv' (12 bytes) had 8 bytes")));
}

TEST_F(DataIdentityTest, OfALargeFileTheEndsCountAndItIsNotReadWhole) {
  // The file has a size of 256 GiB and few blocks: to read it whole would take longer than the test may.
  Write("d.csv", "y,a\n1,x\n");
  const std::string path = dir_.File("d.csv");
  DatasetOptions options{.train_files = {path}};
  options.schema.label = "y";
  options.schema.sparse = {{.column = "a"}};
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Dataset> dataset, Dataset::Open(options));
  constexpr uint64_t kBytes = uint64_t{1} << 38;
  std::filesystem::resize_file(path, kBytes);
  TANDEM_ASSERT_OK_AND_ASSIGN(const v1::DataIdentity before, IdentifyData(options, *dataset, {}));
  EXPECT_EQ(before.train(0).bytes(), kBytes);
  for (const uint64_t at : {uint64_t{6}, kBytes - 1}) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(at));
    file.put('7');
    file.close();
    TANDEM_ASSERT_OK_AND_ASSIGN(const v1::DataIdentity now, IdentifyData(options, *dataset, {}));
    EXPECT_THAT(Differences(before, now), ElementsAre(HasSubstr("has other contents"))) << at;
    file.open(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(at));
    file.put(at == 6 ? 'x' : '\0');
  }
}

}  // namespace
}  // namespace tandem::worker
