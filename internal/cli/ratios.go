package cli

// Cost is what a run achieved, and the processor time that one operation took.
type Cost struct {
	Throughput float64
	CPU        float64 // of clients and data servers together
	ServerCPU  float64 // of data servers alone; 0 if not known
}

// Ratios compares runs with those of a rival, within repetitions.
type Ratios struct {
	Through   Spread `json:"throughput_ratio"`
	CPU       Spread `json:"cpu_ratio"`
	ServerCPU Spread `json:"server_cpu_ratio"`
}

// RatiosOf computes the ratios from the repetitions that both have. ok is false if there are
// none.
func RatiosOf(ours, theirs []Cost) (r Ratios, ok bool) {
	n := min(len(ours), len(theirs))
	spread := func(of func(c *Cost) float64) Spread {
		var all []float64
		for i := range n {
			all = append(all, Ratio(of(&ours[i]), of(&theirs[i])))
		}
		return SpreadOf(all)
	}
	if n == 0 {
		return r, false
	}
	return Ratios{
		Through:   spread(func(c *Cost) float64 { return c.Throughput }),
		CPU:       spread(func(c *Cost) float64 { return c.CPU }),
		ServerCPU: spread(func(c *Cost) float64 { return c.ServerCPU }),
	}, true
}

// RatioTitles is the first row of a table of ratios; unit is what processor time is for.
func RatioTitles(unit string) []string {
	return []string{"ratio", "throughput", "CPU per " + unit, "data-server CPU per " + unit}
}

// Row is a row of that table.
func (r *Ratios) Row(ours, rival string) []string {
	server := "not apart"
	if r.ServerCPU.Max > 0 {
		server = r.ServerCPU.String()
	}
	return []string{ours + " ÷ " + rival, r.Through.String(), r.CPU.String(), server}
}

// Ratio is x ÷ y, 0 without y.
func Ratio(x, y float64) float64 {
	if y == 0 {
		return 0
	}
	return x / y
}
