// ALEX, which one thread may use.
#include "alex.h"

#include "harness.h"

struct Peer {
  static constexpr const char* name = "ALEX";
  static constexpr int threads = 1;
  alex::Alex<uint64_t, uint64_t> index;

  void load(const std::vector<uint64_t>& keys) {
    std::vector<std::pair<uint64_t, uint64_t>> rows;
    rows.reserve(keys.size());
    for (uint64_t k : keys) rows.emplace_back(k, k + 1);
    index.bulk_load(rows.data(), int(rows.size()));
  }
  void enter(int) {}
  void leave(int) {}
  bool get(int, uint64_t key, uint64_t& value) {
    const uint64_t* p = index.get_payload(key);
    if (p == nullptr) return false;
    value = *p;
    return true;
  }
  bool insert(int, uint64_t key, uint64_t value) { return index.insert(key, value).second; }
  size_t scan(int, uint64_t from, size_t n, uint64_t* values) {
    size_t got = 0;
    for (auto it = index.lower_bound(from); got < n && it != index.end(); it++) values[got++] = it.payload();
    return got;
  }
  void settle() {}
};

int main(int argc, char** argv) { return harness::main<Peer>(argc, argv); }
