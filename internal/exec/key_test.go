package exec

import (
	"testing"

	"pgregory.net/rapid"

	"drtmx/index"
	"drtmx/internal/testseed"
	"drtmx/tables"
)

// TestEngineKeysOrderAsUserKeys converts keys of each kind of index to the
// engine's and back.
func TestEngineKeysOrderAsUserKeys(t *testing.T) {
	number, text := rapid.Map(rapid.Uint64(), tables.Num), rapid.Map(rapid.SliceOfN(rapid.Byte(), 0, 9), tables.Str[[]byte])
	for name, c := range map[string]struct {
		ix  tables.Index
		key *rapid.Generator[tables.Key]
	}{
		"numbers":                  {tables.Index{}, number},
		"numbers of variable rows": {tables.Index{Strings: true}, number},
		"strings":                  {tables.Index{Key: tables.StringKey, Strings: true}, text},
	} {
		t.Run(name, func(t *testing.T) {
			testseed.Check(t, func(t *rapid.T) {
				var arena keyArena
				user := []tables.Key{c.key.Draw(t, "a"), c.key.Draw(t, "b"), tables.First, tables.Last}
				var engine []index.Key
				for i, k := range user {
					engine = append(engine, arena.bound(&c.ix, k))
					if i < 2 && (userKey(&c.ix, engine[i]) != k || arena.view(&c.ix, k) != engine[i]) {
						t.Fatalf("%v comes back as %v", k, userKey(&c.ix, engine[i]))
					}
				}
				if got, want := engine[0].Compare(engine[1]), user[0].Compare(user[1]); got != want {
					t.Fatalf("%v and %v: engine keys compare %d", user[0], user[1], got)
				}
				if engine[2].Compare(engine[0]) > 0 || engine[3].Compare(engine[0]) < 0 {
					t.Fatalf("%v is not between the first and the last key", user[0])
				}
			})
		})
	}
}
