// SPDX-License-Identifier: Apache-2.0
#include "base/cuda/library_search.h"

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "tests/base/cuda/fake_gpu.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace tandem::cuda {
namespace {

using ::tandem::testing::StatusIs;
using ::tandem::testing::TempDir;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class LibrarySearchTest : public ::testing::Test {
 protected:
  std::string Put(const std::string& file) {
    const std::filesystem::path path = std::filesystem::path(dir_.path()) / file;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << "x";
    return path.string();
  }
  std::string At(const std::string& folder) { return (std::filesystem::path(dir_.path()) / folder).string(); }
  TempDir dir_;
  SearchPlaces places_;
};

TEST_F(LibrarySearchTest, WheelsOfAPythonEnvironmentAreFound) {
  const std::string site = "env/lib/python3.11/site-packages/nvidia/";
  const std::string nccl = Put(site + "nccl/lib/libnccl.so.2");
  const std::string cuda13 = Put(site + "cu13/lib/libcudart.so.13");
  const std::string cuda12 = Put(site + "cuda_runtime/lib/libcudart.so.12");
  places_.prefixes = {"", At("no such environment"), At("env")};
  EXPECT_THAT(LibraryCandidates(places_, "libnccl.so.2"), ElementsAre("libnccl.so.2", nccl));
  // The newest version comes first.
  EXPECT_THAT(CudartCandidates(places_),
              ElementsAre("libcudart.so.13", cuda13, "libcudart.so.12", cuda12, "libcudart.so.11.0"));
}

TEST_F(LibrarySearchTest, WheelsNextToThisPackageAreFound) {
  const std::string nccl = Put("opt/site-packages/nvidia/nccl/lib/libnccl.so.2");
  places_.own_folder = At("opt/site-packages/tandem/bin");
  EXPECT_THAT(LibraryCandidates(places_, "libnccl.so.2"), ElementsAre("libnccl.so.2", nccl));
}

TEST_F(LibrarySearchTest, NamedFoldersComeBeforeTheSystemsAndCudasFolderLast) {
  const std::string named = Put("named/libnccl.so.2"), cuda = Put("cuda/lib64/libnccl.so.2");
  places_.named = absl::StrCat(At("absent"), ":", At("named"));
  places_.cuda_homes = {"", At("cuda")};
  EXPECT_THAT(LibraryCandidates(places_, "libnccl.so.2"), ElementsAre(named, "libnccl.so.2", cuda));
}

TEST_F(LibrarySearchTest, AnOlderCudartIsTakenIfTheNewestFindsNoDevice) {
  FakeGpu none(0), some(1);
  auto load = [&](const std::string& name) -> absl::StatusOr<Loaded<CudaApi>> {
    if (name == "absent") return absl::FailedPreconditionError("absent not found");
    if (name == "broken") return absl::FailedPreconditionError("broken cannot be loaded: not an ELF file");
    return Loaded<CudaApi>{(name == "old" ? some : none).api(), name};
  };
  TANDEM_ASSERT_OK_AND_ASSIGN(auto chosen, ChooseCudart({"absent", "new", "broken", "old"}, load));
  EXPECT_EQ(chosen.path, "old");
  TANDEM_ASSERT_OK_AND_ASSIGN(chosen, ChooseCudart({"new", "newer"}, load));
  EXPECT_EQ(chosen.path, "new");  // its error says what is wrong with the driver
  EXPECT_THAT(ChooseCudart({"absent", "broken"}, load),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("not an ELF file")));
  EXPECT_THAT(ChooseCudart({"absent"}, load),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("TANDEM_CUDA_LIBRARY_PATH")));
}

}  // namespace
}  // namespace tandem::cuda
