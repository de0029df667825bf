// XIndex, with its one thread in the background.
#include <time.h>

#include <array>
#include <limits>
#include <mutex>
#include <numeric>

#include "harness.h"

#include "xindex.h"
#include "xindex_impl.h"

// Key is a number as XIndex wants its keys.
struct Key {
  uint64_t n = 0;

  static constexpr size_t model_key_size() { return 1; }
  static Key max() { return {std::numeric_limits<uint64_t>::max()}; }
  static Key min() { return {0}; }
  std::array<double, 1> to_model_key() const { return {double(n)}; }
  friend bool operator<(const Key& a, const Key& b) { return a.n < b.n; }
  friend bool operator>(const Key& a, const Key& b) { return a.n > b.n; }
  friend bool operator<=(const Key& a, const Key& b) { return a.n <= b.n; }
  friend bool operator>=(const Key& a, const Key& b) { return a.n >= b.n; }
  friend bool operator==(const Key& a, const Key& b) { return a.n == b.n; }
  friend bool operator!=(const Key& a, const Key& b) { return a.n != b.n; }
};

struct Peer {
  static constexpr const char* name = "XIndex";
  static constexpr int threads = 2;
  xindex::XIndex<Key, uint64_t>* index = nullptr;
  std::vector<std::pair<Key, uint64_t>> rows[threads];
  std::mutex busy[threads];
  std::thread idle;

  void load(const std::vector<uint64_t>& keys) {
    std::vector<Key> ks;
    std::vector<uint64_t> values;
    ks.reserve(keys.size());
    values.reserve(keys.size());
    for (uint64_t k : keys) {
      ks.push_back({k});
      values.push_back(k + 1);
    }
    index = new xindex::XIndex<Key, uint64_t>(ks, values, threads, 1);
    // The thread in the background waits until each worker has begun another
    // operation. This one stands for the workers that have no work.
    idle = std::thread([this] {
      for (;; usleep(1000)) {
        for (int t = 0; t < threads; t++) {
          if (!busy[t].try_lock()) continue;
          xindex::rcu_progress(t);
          busy[t].unlock();
        }
      }
    });
  }
  void enter(int thread) { busy[thread].lock(); }
  void leave(int thread) { busy[thread].unlock(); }
  bool get(int thread, uint64_t key, uint64_t& value) { return index->get({key}, value, thread); }
  bool insert(int thread, uint64_t key, uint64_t value) { return index->put({key}, value, thread); }
  size_t scan(int thread, uint64_t from, size_t n, uint64_t* values) {
    auto& got = rows[thread];
    index->scan({from}, n, got, thread);
    for (size_t i = 0; i < got.size(); i++) values[i] = got[i].second;
    return got.size();
  }
  // settle waits until the thread in the background hardly works for three seconds, in
  // which it begins at least one round, but for a minute at most.
  void settle() {
    for (int i = 0; i < 20; i++) {
      const clock_t start = clock();
      sleep(3);
      if (clock() - start < CLOCKS_PER_SEC / 5) return;
    }
  }
};

int main(int argc, char** argv) { return harness::main<Peer>(argc, argv); }
