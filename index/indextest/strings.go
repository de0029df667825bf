package indextest

import (
	"fmt"
	"slices"
	"strings"

	"drtmx/index"
)

// StringKeys chooses n string keys, ascending, of the kinds that go wrong:
// the empty key, runs of the lowest and of the highest byte and so prefixes of
// one another, keys that share 200 bytes, keys of the greatest length that
// differ in the last bytes only, and numbers.
func StringKeys(n int) func(i int) index.Key {
	common := strings.Repeat("warehouse/", 20)
	longest := strings.Repeat("k", index.MaxKeyBytes-8)
	seen := map[string]bool{"": true}
	keys := []string{""}
	for i := 0; len(keys) < n; i++ {
		var key string
		switch run := 1 + i/6*7%index.MaxKeyBytes; i % 6 {
		case 0:
			key = common + fmt.Sprintf("%d", i)
		case 1:
			key = strings.Repeat("\xff", run)
		case 2:
			key = strings.Repeat("\x00", run)
		case 3:
			key = string(index.AppendNum([]byte(longest), uint64(i)))
		case 4:
			key = strings.Repeat("ab", run)[:run]
		default:
			key = string(index.AppendNum(nil, uint64(i)*0x9e3779b97f4a7c15))
		}
		if !seen[key] {
			seen[key] = true
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return func(i int) index.Key { return index.Str(keys[i]) }
}

// key is the key of number k: in an engine with string keys one that shares a
// prefix with all others.
func (eng Engine) key(k uint64) index.Key {
	if eng.Strings {
		return index.Str(string(index.AppendNum([]byte("customer/"), k)))
	}
	return index.Num(k)
}

// words is a size of row for key k, which in an engine with string keys
// depends on key and round and is the same every third round.
func (eng Engine) words(k uint64, round, most int) int {
	if eng.Strings {
		return int(7*k+uint64(round%3*most/3)) % (most + 1)
	}
	return most
}

// reserve makes room where that is asked for.
func (eng Engine) reserve(s index.Server, held *index.Held, words int) error {
	if !eng.Strings {
		return nil
	}
	return s.Reserve(held, words)
}
