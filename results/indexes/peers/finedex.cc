// FINEdex.
#include "harness.h"

#include "function.h"
#include "finedex.h"

struct Peer {
  static constexpr const char* name = "FINEdex";
  static constexpr int threads = 2;
  finedex::FINEdex<uint64_t, uint64_t> index;
  std::vector<std::pair<uint64_t, uint64_t>> rows[threads];

  void load(const std::vector<uint64_t>& keys) {
    std::vector<uint64_t> values;
    values.reserve(keys.size());
    for (uint64_t k : keys) values.push_back(k + 1);
    index.train(keys, values, 32);
  }
  template <class Result>
  static bool ok(Result r) { return r == Result::ok; }

  void enter(int) {}
  void leave(int) {}
  bool get(int, uint64_t key, uint64_t& value) { return ok(index.find(key, value)); }
  bool insert(int, uint64_t key, uint64_t value) { return ok(index.insert(key, value)); }
  size_t scan(int thread, uint64_t from, size_t n, uint64_t* values) {
    auto& got = rows[thread];
    got.clear();
    index.scan(from, n, got);
    const size_t m = std::min(n, got.size());
    for (size_t i = 0; i < m; i++) values[i] = got[i].second;
    return m;
  }
  void settle() {}
};

int main(int argc, char** argv) { return harness::main<Peer>(argc, argv); }
