// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/targets.h"

namespace tandem::fuzz {

const std::vector<Target>& Targets() {
  static const auto* const targets = new std::vector<Target>{
      {"id_codec", FuzzIdCodec},
      {"value_codec", FuzzValueCodec},
      {"bulk_codec", FuzzBulkCodec},
      {"pull", FuzzPull},
      {"push", FuzzPush},
      {"ring", FuzzRing},
      {"frame", FuzzFrame},
      {"stream_server", FuzzStreamServer, 500},
      {"stream_client", FuzzStreamClient, 500},
      {"append", FuzzAppend, 2000, AppendSeeds},
      {"store", FuzzStore, 3000, StoreSeeds},
      {"weights", FuzzWeights, 3000, WeightsSeeds},
      {"replay_service", FuzzReplayService, 3000, ReplayServiceSeeds},
      {"recording", FuzzRecording, 3000, RecordingSeeds},
      {"caller", FuzzCaller, 3000, CallerSeeds},
      {"http", FuzzHttp, 1000, HttpSeeds},
      {"mesh_hello", FuzzMeshHello, 300, MeshHelloSeeds},
      // Files. Each has at least 500 mutations of every file that belongs to its format.
      {"checkpoint", FuzzCheckpoint, 3000, CheckpointSeeds, true},
      {"replay", FuzzReplay, 2500, ReplaySeeds, true},
      {"store_log", FuzzStoreLog, 500, StoreLogSeeds, true},
      {"shard_log", FuzzShardLog, 1500, ShardLogSeeds, true},
      {"model", FuzzModel, 500, ModelSeeds, true},
      {"trace_dump", FuzzTraceDump, 1000, TraceDumpSeeds, true},
      {"data", FuzzData, 2000, DataSeeds, true},
      {"job", FuzzJob, 500, JobSeeds, true},
  };
  return *targets;
}

}  // namespace tandem::fuzz
