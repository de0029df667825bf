package cli

import "testing"

func TestSpreadOf(t *testing.T) {
	for _, c := range []struct {
		v    []float64
		want Spread
	}{
		{[]float64{3}, Spread{3, 3, 3}},
		{[]float64{4, 1}, Spread{1, 2.5, 4}},
		{[]float64{9, 1, 2}, Spread{1, 2, 9}},
		{[]float64{8, 1, 2, 4}, Spread{1, 3, 8}},
	} {
		if got := SpreadOf(c.v); got != c.want {
			t.Errorf("%v: %v, want %v", c.v, got, c.want)
		}
	}
}
