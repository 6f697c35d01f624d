// SPDX-License-Identifier: Apache-2.0
#include "worker/step/hybrid_trainer.h"

#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "base/random.h"
#include "cluster/store/memory_store.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ps/replicated/client_row_home.h"
#include "ps/table.h"
#include "tests/ps/replicated/fake_row_home.h"
#include "tests/testing/ps_cluster.h"
#include "tests/testing/status_matchers.h"
#include "worker/nn/gemm.h"
#include "worker/synthetic/synthetic.h"

namespace tandem::worker {
namespace {

using ::tandem::testing::PsCluster;
using ::tandem::testing::StatusIs;
using ::testing::HasSubstr;

constexpr int kEmbeddingDim = 4, kSparse = 3, kDense = 2;

LookupPlan PlanOfEmbeddingAndWide() {
  LookupPlan plan;
  plan.num_features = kSparse;
  plan.dim = kEmbeddingDim;
  plan.tables = {{.name = "embedding", .dim = kEmbeddingDim, .features = {0, 1, 2}},
                 {.name = "wide", .dim = 1, .wide = true, .features = {0, 1, 2}}};
  return plan;
}

std::vector<ps::v1::TableConfig> Tables(const ps::v1::UpdateMode& mode, uint32_t workers) {
  std::vector<ps::v1::TableConfig> tables = {
      ps::EmbeddingTable("embedding", kEmbeddingDim, ps::Adagrad(0.05f), ps::Normal(0, 0.1f)),
      ps::EmbeddingTable("wide", 1, ps::Adagrad(0.05f), ps::Normal(0, 0.1f))};
  for (ps::v1::TableConfig& config : tables) {
    *config.mutable_update_mode() = mode;
    config.set_num_workers(workers);
  }
  return tables;
}

absl::Status CreateTables(ps::Client* client, const ps::v1::UpdateMode& mode, uint32_t workers) {
  for (const ps::v1::TableConfig& config : Tables(mode, workers)) {
    TANDEM_RETURN_IF_ERROR(client->CreateTable(config));
  }
  return absl::OkStatus();
}

// Labels that depend on the ids, so that there is something to learn.
class LearnableReader : public BatchReader {
 public:
  LearnableReader(uint64_t seed, uint64_t batches) {
    SyntheticOptions options{
        .num_sparse = kSparse, .num_dense = kDense, .vocabulary = 50, .zipf_exponent = 0.5};
    options.batch_size = 64;
    options.batches = batches;
    options.seed = seed;
    reader_ = MakeSyntheticReader(options);
  }
  absl::StatusOr<bool> Next(Batch* batch) override {
    absl::StatusOr<bool> more = reader_->Next(batch);
    for (size_t b = 0; more.ok() && *more && b < batch->size; ++b) {
      batch->labels[b] = (batch->sparse[0].ids[b] ^ batch->sparse[1].ids[b]) & 1 ? 1.0f : 0.0f;
    }
    return more;
  }
  uint64_t malformed_lines() const override { return 0; }

 private:
  std::unique_ptr<BatchReader> reader_;
};

struct Trained {
  std::vector<float> parameters;
  std::vector<float> running_averages;
  std::vector<double> losses;
  std::vector<float> scores;
};

ModelOptions WideDeepOptions() {
  return {.kind = "wide_deep",
          .num_dense = kDense,
          .num_sparse = kSparse,
          .dim = kEmbeddingDim,
          .hidden = {8},
          .seed = 3};
}

// Has the rows of both tables that workers replicate.
struct Replicas {
  explicit Replicas(const ps::v1::UpdateMode& mode, uint32_t workers)
      : embedding(Tables(mode, workers)[0]), wide(Tables(mode, workers)[1]) {}
  testing::FakeRows embedding, wide;
  // Rows that are replicated from the first step on; empty: those that `embedding.hot` and `wide.hot` name
  // join later.
  std::vector<uint64_t> ids;
  // True: the rows are those of the cluster's servers, the start is synchronous, and every row that a batch
  // of the start contains joins at its end.
  bool starts_synchronously = false;
  int first_interval = 7;
  uint64_t write_back_steps = 0;
  bool servers_differ = false;  // set to whether the rows on the servers differ from the replicas at the end
};

absl::StatusOr<std::unique_ptr<ps::ReplicatedTables>> MakeReplicas(Replicas* rows, ps::RowHome* home,
                                                                   collectives::ProcessGroup* group,
                                                                   const ps::v1::UpdateMode& mode) {
  std::vector<ps::ReplicatedTableOptions> tables;
  for (const ps::v1::TableConfig& config : Tables(mode, static_cast<uint32_t>(group->world_size()))) {
    tables.push_back({.config = config});
  }
  TANDEM_ASSIGN_OR_RETURN(
      auto replicas,
      ps::ReplicatedTables::Create(
          std::move(tables),
          {.hot_set = {.min_staleness = rows->starts_synchronously ? 0.0 : 1.0},
           .rank = group->rank(),
           .world_size = group->world_size(),
           .all_gather = [group](absl::string_view bytes) { return group->AllGatherBytes(bytes); },
           .first_interval = rows->first_interval},
          home));
  if (rows->starts_synchronously) {
    TANDEM_RETURN_IF_ERROR(replicas->BeginStart());
  } else {
    TANDEM_RETURN_IF_ERROR(replicas->Restore({rows->ids, rows->ids}));
  }
  return replicas;
}

// Runs one worker: trains `epochs` passes, then scores a batch.
absl::StatusOr<Trained> TrainOne(PsCluster* cluster, cluster::Store* store, int rank, int workers,
                                 const ps::v1::UpdateMode& mode, int epochs, size_t bucket_bytes,
                                 const ModelOptions& model_options, Replicas* rows) {
  TANDEM_ASSIGN_OR_RETURN(auto client, cluster->Connect(static_cast<uint32_t>(rank)));
  TANDEM_ASSIGN_OR_RETURN(auto group,
                          collectives::InitProcessGroup(
                              store, {.rank = rank, .world_size = workers, .timeout = absl::Seconds(30)}));
  TANDEM_RETURN_IF_ERROR(CreateTables(client.get(), mode, static_cast<uint32_t>(workers)));
  TANDEM_RETURN_IF_ERROR(group->Barrier().status());
  TANDEM_ASSIGN_OR_RETURN(auto model, CreateModel(model_options));
  TANDEM_ASSIGN_OR_RETURN(auto optimizer, DenseOptimizer::Create({.kind = "adam"}, model->blocks()));
  std::unique_ptr<ps::RowHome> home;
  std::unique_ptr<ps::ReplicatedTables> replicas;
  if (rows != nullptr && rows->starts_synchronously) {
    home = std::make_unique<ps::ClientRowHome>(client.get());
  } else if (rows != nullptr) {
    home = std::make_unique<testing::FakeRowHome>(
        std::map<std::string, testing::FakeRows*>{{"embedding", &rows->embedding}, {"wide", &rows->wide}});
  }
  if (rows != nullptr) {
    TANDEM_ASSIGN_OR_RETURN(replicas, MakeReplicas(rows, home.get(), group.get(), mode));
  }
  HybridTrainer trainer(client.get(), group.get(), model.get(), optimizer.get(), PlanOfEmbeddingAndWide(),
                        {.bucket_bytes = bucket_bytes,
                         .learning_rate = [](uint64_t) { return 0.01; },
                         .replicas = replicas.get(),
                         .write_back_steps = rows != nullptr ? rows->write_back_steps : 0});
  Trained trained;
  for (int epoch = 0; epoch < epochs; ++epoch) {
    LearnableReader reader(static_cast<uint64_t>(epoch * workers + rank), 25);
    TANDEM_ASSIGN_OR_RETURN(PassStats stats, trainer.Train(&reader, [&](const StepReport& step) {
      trained.losses.push_back(step.loss);
    }));
    EXPECT_EQ(stats.steps, 25u);
    EXPECT_EQ(stats.examples, 25u * 64);
    EXPECT_LE(stats.unique_ids, stats.ids);
    TANDEM_RETURN_IF_ERROR(group->Barrier().status());
  }
  EXPECT_EQ(trainer.step(), 25u * static_cast<uint64_t>(epochs));
  if (rows != nullptr && rank == 0) {
    rows->servers_differ = false;
    for (size_t t = 0; t < replicas->size(); ++t) {
      const ps::ReplicatedRows& table = *replicas->table(t);
      std::vector<uint32_t> slots(table.size());
      for (uint32_t slot = 0; slot < slots.size(); ++slot) slots[slot] = slot;
      TANDEM_ASSIGN_OR_RETURN(const ps::MovedRows on_servers,
                              home->Read(t == 0 ? "embedding" : "wide", table.ids()));
      const ps::MovedRows here = table.Read(slots);
      if (on_servers.weights != here.weights || on_servers.state != here.state) rows->servers_differ = true;
    }
  }
  LearnableReader reader(1234, 4);
  TANDEM_ASSIGN_OR_RETURN(ScoredExamples scored, trainer.Predict(&reader));
  EXPECT_EQ(scored.size(), 4u * 64);
  trained.scores.assign(scored.logits().begin(), scored.logits().end());
  trained.parameters.assign(model->parameters().begin(), model->parameters().end());
  trained.running_averages.assign(model->running_averages().begin(), model->running_averages().end());
  TANDEM_RETURN_IF_ERROR(group->Barrier().status());
  return trained;
}

std::vector<Trained> TrainAll(uint32_t servers, int workers, const ps::v1::UpdateMode& mode, int epochs,
                              size_t bucket_bytes = 64, const ModelOptions& model = WideDeepOptions(),
                              Replicas* rows = nullptr) {
  UseOneBlasThread();
  PsCluster cluster(servers);
  cluster::MemoryStore store;
  std::vector<absl::StatusOr<Trained>> results(workers, absl::UnknownError("did not run"));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < workers; ++rank) {
    threads.emplace_back([&, rank] {
      results[rank] = TrainOne(&cluster, &store, rank, workers, mode, epochs, bucket_bytes, model, rows);
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<Trained> trained;
  for (absl::StatusOr<Trained>& result : results) {
    EXPECT_TRUE(result.ok()) << result.status();
    trained.push_back(result.ok() ? *std::move(result) : Trained{});
  }
  return trained;
}

TEST(HybridTrainerTest, SyncTrainingHasTheSameBitsOnAnyNumberOfServers) {
  const std::vector<Trained> one = TrainAll(1, 2, ps::Sync(), 1);
  for (const uint32_t servers : {2, 4}) {
    const std::vector<Trained> more = TrainAll(servers, 2, ps::Sync(), 1);
    for (int rank = 0; rank < 2; ++rank) {
      EXPECT_EQ(more[rank].losses, one[rank].losses) << servers << " servers, rank " << rank;
      EXPECT_EQ(more[rank].parameters, one[rank].parameters) << servers << " servers, rank " << rank;
      EXPECT_EQ(more[rank].scores, one[rank].scores) << servers << " servers, rank " << rank;
    }
  }
}

// Returns all ids of the training data and of the data that is scored.
std::vector<uint64_t> AllIds(int epochs, int workers) {
  std::set<uint64_t> ids;
  std::vector<std::pair<uint64_t, uint64_t>> readers = {{1234, 4}};
  for (int i = 0; i < epochs * workers; ++i) readers.emplace_back(i, 25);
  for (const auto& [seed, batches] : readers) {
    LearnableReader reader(seed, batches);
    Batch batch;
    while (*reader.Next(&batch)) {
      for (const SparseColumn& column : batch.sparse) ids.insert(column.ids.begin(), column.ids.end());
    }
  }
  return {ids.begin(), ids.end()};
}

TEST(HybridTrainerTest, WithEveryRowReplicatedAsynchronousTrainingHasTheBitsOfSync) {
  const std::vector<Trained> sync = TrainAll(2, 2, ps::Sync(), 2);
  for (const ps::v1::UpdateMode& mode : {ps::Async(), ps::Bounded(2), ps::Gba(4)}) {
    Replicas rows(mode, 2);
    rows.ids = AllIds(2, 2);
    const std::vector<Trained> async = TrainAll(2, 2, mode, 2, 64, WideDeepOptions(), &rows);
    for (int rank = 0; rank < 2; ++rank) {
      EXPECT_EQ(async[rank].losses, sync[rank].losses) << ps::FormatUpdateMode(mode) << ", rank " << rank;
      EXPECT_EQ(async[rank].parameters, sync[rank].parameters) << "rank " << rank;
      EXPECT_EQ(async[rank].scores, sync[rank].scores) << "rank " << rank;
    }
  }
}

// An asynchronous start would differ in the first steps already: their pulls run ahead of their pushes.
TEST(HybridTrainerTest, ARunThatStartsSynchronouslyHasTheBitsOfSyncAsLongAsItsRowsAreReplicatedThen) {
  for (const int workers : {1, 2}) {
    const std::vector<Trained> sync = TrainAll(2, workers, ps::Sync(), 2);
    for (const ps::v1::UpdateMode& mode : {ps::Async(), ps::Bounded(2), ps::Gba(4)}) {
      Replicas rows(mode, static_cast<uint32_t>(workers));
      rows.starts_synchronously = true;
      // The start has to contain all ids. One worker has seen them at the end of its first pass.
      if (workers == 1) rows.first_interval = 25;
      const std::vector<Trained> async = TrainAll(2, workers, mode, 2, 64, WideDeepOptions(), &rows);
      for (int rank = 0; rank < workers; ++rank) {
        EXPECT_EQ(async[rank].losses, sync[rank].losses) << ps::FormatUpdateMode(mode) << ", rank " << rank;
        EXPECT_EQ(async[rank].parameters, sync[rank].parameters) << "rank " << rank;
        EXPECT_EQ(async[rank].scores, sync[rank].scores) << "rank " << rank;
      }
    }
  }
}

TEST(HybridTrainerTest, RowsThatJoinInMidRunAreReplicatedAlikeOnAllWorkers) {
  Replicas rows(ps::Async(), 2);
  for (const uint64_t id : AllIds(1, 2)) {
    if (id % 3 == 0) rows.embedding.hot.push_back({id, 8.0});
    if (id % 3 != 1) rows.wide.hot.push_back({id, 8.0});
  }
  const std::vector<Trained> trained = TrainAll(2, 2, ps::Async(), 2, 64, WideDeepOptions(), &rows);
  EXPECT_EQ(trained[0].parameters, trained[1].parameters);
  EXPECT_EQ(trained[0].scores, trained[1].scores);
  double first = 0, last = 0;
  for (int i = 0; i < 10; ++i) {
    first += trained[0].losses[i] / 10;
    last += trained[0].losses[trained[0].losses.size() - 1 - i] / 10;
  }
  EXPECT_LT(last, first);
}

TEST(HybridTrainerTest, TheServersHaveTheReplicatedRowsAfterEachWriteBack) {
  const std::vector<Trained> sync = TrainAll(2, 2, ps::Sync(), 1);
  for (const uint64_t every : {0, 24, 25, 5}) {
    Replicas rows(ps::Async(), 2);
    rows.starts_synchronously = true;
    rows.write_back_steps = every;
    const std::vector<Trained> async = TrainAll(2, 2, ps::Async(), 1, 64, WideDeepOptions(), &rows);
    EXPECT_EQ(rows.servers_differ, every == 0 || every == 24) << "of 25 steps, after each " << every;
    EXPECT_EQ(async[0].scores, sync[0].scores);
  }
}

TEST(HybridTrainerTest, HowGradientsAreBucketedChangesNoBit) {
  const std::vector<Trained> in_one = TrainAll(2, 3, ps::Sync(), 1, size_t{1} << 20);
  const std::vector<Trained> by_layer = TrainAll(2, 3, ps::Sync(), 1, 1);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(by_layer[rank].losses, in_one[rank].losses) << "rank " << rank;
    EXPECT_EQ(by_layer[rank].parameters, in_one[rank].parameters) << "rank " << rank;
    EXPECT_EQ(by_layer[rank].scores, in_one[rank].scores) << "rank " << rank;
  }
}

TEST(HybridTrainerTest, TheDenseNetworkStaysEqualOnAllWorkers) {
  for (const ps::v1::UpdateMode& mode : {ps::Sync(), ps::Async(), ps::Bounded(3)}) {
    const std::vector<Trained> trained = TrainAll(2, 2, mode, 1);
    EXPECT_EQ(trained[0].parameters, trained[1].parameters);
    EXPECT_EQ(trained[0].scores, trained[1].scores);  // the rows are equal once all pushes are done
    EXPECT_NE(trained[0].losses, trained[1].losses);  // each worker has its own data
  }
}

TEST(HybridTrainerTest, WorkersHaveTheSameRunningAveragesAfterAPass) {
  // A DLRM computes the statistics of its bottom MLP while the gradients of its top MLP are reduced.
  ModelOptions options = WideDeepOptions();
  options.kind = "dlrm";
  options.bottom = {6};
  std::vector<float> averages;
  for (const char* batch_norm : {"local", "sync"}) {
    options.batch_norm = batch_norm;
    const std::vector<Trained> three = TrainAll(1, 3, ps::Sync(), 2, 1, options);
    for (int rank = 1; rank < 3; ++rank) {
      EXPECT_EQ(three[rank].running_averages, three[0].running_averages) << batch_norm;
      EXPECT_EQ(three[rank].parameters, three[0].parameters) << batch_norm;
      EXPECT_EQ(three[rank].scores, three[0].scores) << batch_norm;
    }
    ASSERT_EQ(three[0].running_averages.size(), 2u * (8 + 6) + 2);
    EXPECT_NE(three[0].running_averages, averages);  // local and global statistics differ
    averages = three[0].running_averages;
    const std::vector<Trained> again = TrainAll(2, 3, ps::Sync(), 2, 1, options);
    EXPECT_EQ(again[0].running_averages, averages) << batch_norm;
    EXPECT_EQ(again[0].parameters, three[0].parameters) << batch_norm;
  }
}

TEST(HybridTrainerTest, AWorkerThatEndsEarlyFailsTheOtherInsteadOfBlockingIt) {
  UseOneBlasThread();
  PsCluster cluster(1);
  cluster::MemoryStore store;
  ModelOptions options = WideDeepOptions();
  options.batch_norm = "sync";
  std::vector<absl::Status> results(2);
  const auto work = [&](int rank) -> absl::Status {
    TANDEM_ASSIGN_OR_RETURN(auto client, cluster.Connect(static_cast<uint32_t>(rank)));
    TANDEM_ASSIGN_OR_RETURN(
        auto group,
        collectives::InitProcessGroup(&store, {.rank = rank, .world_size = 2, .timeout = absl::Seconds(10)}));
    TANDEM_RETURN_IF_ERROR(CreateTables(client.get(), ps::Async(), 2));
    TANDEM_ASSIGN_OR_RETURN(auto model, CreateModel(options));
    TANDEM_ASSIGN_OR_RETURN(auto optimizer, DenseOptimizer::Create({}, model->blocks()));
    HybridTrainer trainer(client.get(), group.get(), model.get(), optimizer.get(), PlanOfEmbeddingAndWide(),
                          {.learning_rate = [](uint64_t) { return 0.01; }});
    LearnableReader reader(static_cast<uint64_t>(rank), rank == 0 ? 9 : 3);
    return trainer.Train(&reader).status();
  };
  std::thread other([&] { results[1] = work(1); });
  results[0] = work(0);
  other.join();
  EXPECT_FALSE(results[0].ok());
}

TEST(HybridTrainerTest, EveryModeLearns) {
  for (const ps::v1::UpdateMode& mode : {ps::Sync(), ps::Async(), ps::Bounded(2)}) {
    const std::vector<double> losses = TrainAll(2, 1, mode, 8)[0].losses;
    double first = 0, last = 0;
    for (int i = 0; i < 10; ++i) {
      first += losses[i] / 10;
      last += losses[losses.size() - 1 - i] / 10;
    }
    EXPECT_LT(last, first - 0.05);
  }
}

TEST(HybridTrainerTest, AReaderThatFailsEndsThePassWithItsError) {
  class Failing : public BatchReader {
   public:
    absl::StatusOr<bool> Next(Batch*) override { return absl::DataLossError("line 7 is no example"); }
    uint64_t malformed_lines() const override { return 0; }
  };
  PsCluster cluster(1);
  TANDEM_ASSERT_OK_AND_ASSIGN(auto client, cluster.Connect());
  TANDEM_ASSERT_OK(CreateTables(client.get(), ps::Async(), 1));
  TANDEM_ASSERT_OK_AND_ASSIGN(auto model,
                              CreateModel({.kind = "lr", .num_dense = kDense, .num_sparse = kSparse}));
  TANDEM_ASSERT_OK_AND_ASSIGN(auto optimizer, DenseOptimizer::Create({}, model->blocks()));
  HybridTrainer trainer(client.get(), nullptr, model.get(), optimizer.get(), PlanOfEmbeddingAndWide(),
                        {.learning_rate = [](uint64_t) { return 0.01; }});
  Failing reader;
  EXPECT_THAT(trainer.Train(&reader).status(), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("line 7")));
  EXPECT_THAT(trainer.Predict(&reader).status(), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("line 7")));
}

TEST(HybridTrainerTest, AServerThatGoesAwayEndsThePassWithItsName) {
  PsCluster cluster(2);
  std::atomic<int> calls{0};
  auto injector = [&](absl::string_view method, int64_t) -> rpc::Fault {
    if (!absl::EndsWith(method, "/Push") || calls++ < 6) return {};
    return {.kind = rpc::Fault::Kind::kFailBefore, .status = absl::UnavailableError("connection reset")};
  };
  TANDEM_ASSERT_OK_AND_ASSIGN(auto client, cluster.Connect(0, injector, absl::Seconds(4)));
  TANDEM_ASSERT_OK(CreateTables(client.get(), ps::Async(), 1));
  TANDEM_ASSERT_OK_AND_ASSIGN(auto model, CreateModel({.kind = "wide_deep",
                                                       .num_dense = kDense,
                                                       .num_sparse = kSparse,
                                                       .dim = kEmbeddingDim,
                                                       .hidden = {8}}));
  TANDEM_ASSERT_OK_AND_ASSIGN(auto optimizer, DenseOptimizer::Create({}, model->blocks()));
  HybridTrainer trainer(client.get(), nullptr, model.get(), optimizer.get(), PlanOfEmbeddingAndWide(),
                        {.learning_rate = [](uint64_t) { return 0.01; }});
  LearnableReader reader(1, 1000);
  const absl::Status status = trainer.Train(&reader).status();
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), HasSubstr("push to server"));
}

}  // namespace
}  // namespace tandem::worker
