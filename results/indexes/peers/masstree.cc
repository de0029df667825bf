// Masstree. Its keys are strings: numbers with the highest byte first.
#include "config.h"

#include "compiler.hh"
#include "kvthread.hh"
#include "masstree.hh"
#include "masstree_insert.hh"
#include "masstree_print.hh"
#include "masstree_remove.hh"
#include "masstree_scan.hh"
#include "masstree_tcursor.hh"
#include "string.hh"

#include "harness.h"

relaxed_atomic<mrcu_epoch_type> globalepoch(1);
relaxed_atomic<mrcu_epoch_type> active_epoch(1);
volatile bool recovering = false;
kvtimestamp_t initial_timestamp;

struct Unparse {
  static int unparse_key(Masstree::key<uint64_t> key, char* text, int n) {
    return snprintf(text, n, "%lu", (unsigned long)key.ikey());
  }
};

struct Params : Masstree::nodeparams<15, 15> {
  typedef uint64_t value_type;
  typedef Masstree::value_print<value_type> value_print_type;
  typedef threadinfo threadinfo_type;
  typedef Unparse key_unparse_type;
};

// Text is a key as Masstree takes it.
struct Text {
  uint64_t bytes;
  explicit Text(uint64_t key) : bytes(__builtin_bswap64(key)) {}
  Masstree::Str str() const { return Masstree::Str(reinterpret_cast<const char*>(&bytes), sizeof bytes); }
};

// Collector takes the values of a scan.
struct Collector {
  uint64_t* values;
  size_t n, got = 0;

  template <class Stack, class K>
  void visit_leaf(const Stack&, const K&, threadinfo&) {}
  bool visit_value(const Masstree::key<uint64_t>&, uint64_t value, threadinfo&) {
    values[got++] = value;
    return got < n;
  }
};

struct Peer {
  static constexpr const char* name = "Masstree";
  static constexpr int threads = 2;
  Masstree::basic_table<Params> table;
  threadinfo* info[threads];

  Peer() {
    for (int t = 0; t < threads; t++) info[t] = threadinfo::make(t == 0 ? threadinfo::TI_MAIN : threadinfo::TI_PROCESS, t);
    table.initialize(*info[0]);
  }
  void load(const std::vector<uint64_t>& keys) {
    for (uint64_t k : keys) insert(0, k, k + 1);
  }
  void enter(int) {}
  void leave(int) {}
  bool get(int thread, uint64_t key, uint64_t& value) {
    const Text text(key);
    Masstree::unlocked_tcursor<Params> at(table, text.str());
    if (!at.find_unlocked(*info[thread])) return false;
    value = at.value();
    return true;
  }
  bool insert(int thread, uint64_t key, uint64_t value) {
    const Text text(key);
    Masstree::tcursor<Params> at(table, text.str());
    const bool found = at.find_insert(*info[thread]);
    if (!found) at.value() = value;
    fence();
    at.finish(1, *info[thread]);
    return !found;
  }
  size_t scan(int thread, uint64_t from, size_t n, uint64_t* values) {
    const Text text(from);
    Collector c{values, n};
    table.scan(text.str(), true, c, *info[thread]);
    return c.got;
  }
  void settle() {}
};

int main(int argc, char** argv) { return harness::main<Peer>(argc, argv); }
