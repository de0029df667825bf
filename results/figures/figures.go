// Package figures has what the programs behind the pages of results share: medians,
// and how figures are printed.
package figures

import (
	"fmt"
	"slices"
)

// Median returns the median of values in any order, 0 if there are none.
func Median(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(v))
	return (s[(len(s)-1)/2] + s[len(s)/2]) / 2
}

// Spread prints the median of values, with the least and the greatest.
func Spread(v []float64, format string) string {
	if len(v) == 0 {
		return "none"
	}
	return fmt.Sprintf(format+" ("+format+" to "+format+")", Median(v), slices.Min(v), slices.Max(v))
}

// Number prints a value with at least three digits.
func Number(v float64) string {
	switch {
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	case v >= 1:
		return fmt.Sprintf("%.2f", v)
	}
	return fmt.Sprintf("%.4f", v)
}
