package server

import (
	"fmt"
	"testing"
)

func TestDifference(t *testing.T) {
	for _, c := range []struct{ have, want, says string }{
		{
			`{"tables":[{"name":"t","columns":[{"name":"a","type":1}]}]}`, `{"tables":[{"name":"t","columns":[{"name":"a","type":2}]}]}`,
			"tables, t, columns, a, type: 1, 2",
		},
		{
			`{"tables":[{"name":"t","columns":[{"name":"a"},{"name":"b"}]}]}`, `{"tables":[{"name":"t","columns":[{"name":"b"},{"name":"a"}]}]}`,
			"tables, t, columns, number 1: a, b",
		},
		{`{"tables":[{"name":"t"}]}`, `{"tables":[{"name":"t"},{"name":"u"}]}`, "tables, number 2: nothing, u"},
		{`{"tables":[{"name":"t","key":1}]}`, `{"tables":[{"name":"t"}]}`, "tables, t, key: 1, nothing"},
		{`{"tables":[{"name":"t","bounds":[1,2]}]}`, `{"tables":[{"name":"t","bounds":[1]}]}`, "tables, t, bounds, number 2: 2, nothing"},
		{`{}`, `[]`, "catalogue: {}, []"},
	} {
		place, had, wanted := difference([]byte(c.have), []byte(c.want))
		if got := fmt.Sprintf("%s: %s, %s", place, had, wanted); got != c.says {
			t.Errorf("%s and %s: %q, want %q", c.have, c.want, got, c.says)
		}
	}
}
