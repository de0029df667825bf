package figures

import (
	"regexp"
	"strconv"
	"strings"
)

// benchmarkLine is a result: the name below that of the function, or that of one with nothing
// below it, the processors, the number of runs, and pairs of a value and its unit.
var benchmarkLine = regexp.MustCompile(`(?m)^Benchmark(?:\w+/(\S+?)|(\w+?))(?:-\d+)?\s+\d+\s+(.*)$`)

// Benchmarks returns the values that Go benchmarks have printed, by their names, a space and the
// unit. The name is that below the function's, or what follows Benchmark if there is none.
func Benchmarks(out string) map[string]float64 {
	got := map[string]float64{}
	for _, m := range benchmarkLine.FindAllStringSubmatch(out, -1) {
		f := strings.Fields(m[3])
		for i := 0; i+1 < len(f); i += 2 {
			if v, err := strconv.ParseFloat(f[i], 64); err == nil {
				got[m[1]+m[2]+" "+f[i+1]] = v
			}
		}
	}
	return got
}
