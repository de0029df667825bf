package figures

import "testing"

func TestMedian(t *testing.T) {
	for _, c := range []struct {
		v    []float64
		want float64
	}{{nil, 0}, {[]float64{3}, 3}, {[]float64{4, 1}, 2.5}, {[]float64{9, 1, 2}, 2}} {
		if got := Median(c.v); got != c.want {
			t.Errorf("%v: %v, want %v", c.v, got, c.want)
		}
	}
}

func TestPrinting(t *testing.T) {
	if got := Spread([]float64{3, 1, 2}, "%.1f"); got != "2.0 (1.0 to 3.0)" {
		t.Error(got)
	}
	if got := Spread(nil, "%.1f"); got != "none" {
		t.Error(got)
	}
	for v, want := range map[float64]string{1234.5: "1234", 12.34: "12.3", 1.234: "1.23", 0.12344: "0.1234"} {
		if got := Number(v); got != want {
			t.Errorf("%v: %s, want %s", v, got, want)
		}
	}
}
