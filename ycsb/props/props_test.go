package props

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/magiconair/properties"
)

func TestReaderReadsAndReportsFaultsTogether(t *testing.T) {
	p := properties.LoadMap(map[string]string{
		"n": "12", "big": "99", "word": "twelve", "empty": "", "x": "0.5", "nan": "NaN", "yes": "On", "maybe": "perhaps", "kind": "Hash",
	})
	r := NewReader(p)
	if r.Int("n", 1, 0, 20) != 12 || r.Int("none", 7, 0, 20) != 7 || r.Float("x", 1, 0, 1) != 0.5 || !r.Bool("yes", false) ||
		r.OneOf("kind", "ordered", "ordered", "hash") != "hash" || r.String("none", "d") != "d" || r.Has("none") || !r.Has("empty") {
		t.Error("good values are read wrongly")
	}
	if err := r.Err(); err != nil {
		t.Fatal(err)
	}
	if r.Int("big", 5, 0, 20) != 5 || r.Int("word", 5, 0, 20) != 5 || r.Int("empty", 5, 0, math.MaxInt64) != 5 ||
		r.Float("nan", 1, 0, 1) != 1 || r.Bool("maybe", true) != true || r.OneOf("word", "ordered", "ordered", "hash") != "ordered" {
		t.Error("bad values are not replaced by the default")
	}
	err := r.Err()
	if !errors.Is(err, ErrProperty) {
		t.Fatal(err)
	}
	for _, want := range []string{
		`big "99": want a whole number from 0 to 20`, `word "twelve": want a whole number`,
		`empty has no value: want a whole number of at least 0`, `nan "NaN": want a number from 0 to 1`,
		`maybe "perhaps": want true or false`, `word "twelve": want ordered or hash`,
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in %q", want, err)
		}
	}
}
