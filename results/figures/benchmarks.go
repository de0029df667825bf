package figures

import (
	"regexp"
	"strconv"
	"strings"
)

// benchmarkLine is a result: the name below that of the function, the processors, the
// number of runs, and pairs of a value and its unit.
var benchmarkLine = regexp.MustCompile(`(?m)^Benchmark\w+/(\S+?)(?:-\d+)?\s+\d+\s+(.*)$`)

// Benchmarks returns the values that Go benchmarks have printed, by the name below that of the
// function, a space and the unit.
func Benchmarks(out string) map[string]float64 {
	got := map[string]float64{}
	for _, m := range benchmarkLine.FindAllStringSubmatch(out, -1) {
		f := strings.Fields(m[2])
		for i := 0; i+1 < len(f); i += 2 {
			if v, err := strconv.ParseFloat(f[i], 64); err == nil {
				got[m[1]+" "+f[i+1]] = v
			}
		}
	}
	return got
}
