// The B+tree with optimistic lock coupling.
#include <stdint.h>

#include "BTreeOLC_child_layout.h"

#include "harness.h"

struct Peer {
  static constexpr const char* name = "B+tree-OLC";
  static constexpr int threads = 2;
  btreeolc::BTree<uint64_t, uint64_t> index;

  void load(const std::vector<uint64_t>& keys) {
    for (uint64_t k : keys) index.insert(k, k + 1);
  }
  void enter(int) {}
  void leave(int) {}
  bool get(int, uint64_t key, uint64_t& value) { return index.lookup(key, value); }
  bool insert(int, uint64_t key, uint64_t value) {
    index.insert(key, value);
    return true;
  }
  size_t scan(int, uint64_t from, size_t n, uint64_t* values) {
    std::pair<uint64_t, uint64_t> rows[harness::kScan];
    const size_t got = index.scan(from, int(std::min(n, harness::kScan)), rows);
    for (size_t i = 0; i < got; i++) values[i] = rows[i].second;
    return got;
  }
  void settle() {}
};

int main(int argc, char** argv) { return harness::main<Peer>(argc, argv); }
