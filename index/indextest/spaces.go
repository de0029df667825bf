package indextest

import (
	"fmt"
	"slices"
	"strings"

	"drtmx/index"
	"drtmx/internal/rng"
)

// KeySpace is a set of string keys, many of them chosen to be hard on an index.
type KeySpace struct {
	Name string
	make func(i, n int) string
}

// Of returns a function that numbers n keys of the space in ascending order.
func (s KeySpace) Of(n int) func(i int) index.Key {
	seen := map[string]bool{}
	keys := make([]string, 0, n)
	for i := 0; len(keys) < n; i++ {
		if k := s.make(i, n); !seen[k] {
			seen[k] = true
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	return func(i int) index.Key { return index.Str(keys[i]) }
}

// runOf is a byte that names a group of at most size keys, and then i's place in
// it times a unit: keys of a group are prefixes of one another.
func runOf(i, size int, unit string) string {
	return string([]byte{byte(i / size)}) + strings.Repeat(unit, i%size)
}

// KeySpaces are the spaces of string keys that ordered engines are run on.
func KeySpaces() []KeySpace {
	mixed := func(i, n int) string {
		r := rng.New(uint64(i)).Split("mixed")
		b := make([]byte, r.Intn(40))
		for j := range b {
			b[j] = "\x00\x00\x01ab\xfe\xff\xff"[r.Intn(8)]
		}
		switch r.Intn(6) {
		case 0:
			return strings.Repeat("a", 200) + string(b)
		case 1:
			return strings.Repeat("\xff", r.Intn(index.MaxKeyBytes))
		case 2:
			return (strings.Repeat("k", 1000) + string(b))[:1000+min(len(b), 24)]
		}
		return string(b)
	}
	return []KeySpace{
		{"numbers", func(i, n int) string { return string(index.AppendNum(nil, uint64(i)*0x9e3779b97f4a7c15))[:min(i, 1)*8] }},
		{"users", func(i, n int) string { return fmt.Sprintf("user%d", i) }},
		{"prefix of 200", func(i, n int) string { return strings.Repeat("p", 200) + fmt.Sprintf("%06d", i) }},
		{"ties", func(i, n int) string { return fmt.Sprintf("%c-alike-for-long-%06d", 'a'+i*4/n, i) }},
		{"nested", func(i, n int) string { return runOf(i, 300, "a") }},
		{"zeros", func(i, n int) string { return runOf(i, 300, "\x00") }},
		{"ones", func(i, n int) string { return runOf(i, 300, "\xff") }},
		{"longest", func(i, n int) string { return strings.Repeat("l", index.MaxKeyBytes-6) + fmt.Sprintf("%06d", i) }},
		{"mixed", mixed},
	}
}
