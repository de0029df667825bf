package command

import (
	"github.com/spf13/cobra"

	"drtmx/internal/cli"
	"drtmx/tables"
	"drtmx/tpcc"
	"drtmx/ycsb/props"
	"drtmx/ycsb/usertable"
)

// workloadYCSB is how users name YCSB's table; its data servers are started
// with a name that carries the catalogue.
const workloadYCSB = "ycsb"

// workloadFlags say which tables drtmx serve has.
type workloadFlags struct {
	name   string
	files  []string
	values []string
	data   *tables.Catalog // of a data directory, which says which workload it is; nil: name does
}

func (w *workloadFlags) add(a *app, c *cobra.Command) {
	if a.own != nil {
		return
	}
	c.Flags().StringVar(&w.name, "workload", workloadTPCC, "tables to serve: tpcc or ycsb")
	c.Flags().StringArrayVarP(&w.files, "property_file", "P", nil, "with ycsb: a property file with fieldcount, drtmx.primary and other properties of the table")
	c.Flags().StringArrayVarP(&w.values, "prop", "p", nil, "with ycsb: a property, as name=value")
}

// resolve is the name of the workload by which data servers are started.
func (w *workloadFlags) resolve(a *app, partitions int) (string, error) {
	if a.own != nil {
		return a.own.Name, nil
	}
	if w.data != nil && len(w.files)+len(w.values) == 0 {
		if w.data.Tables[0].Name() == tpcc.Catalog().Tables[0].Name() {
			return workloadTPCC, nil
		}
		return usertable.WorkloadName(w.data)
	}
	switch w.name {
	case workloadTPCC:
		if len(w.files)+len(w.values) > 0 {
			return "", cli.Usagef("drtmx serve: -P and -p: want --workload %s with them", workloadYCSB)
		}
		return workloadTPCC, nil
	case workloadYCSB:
		name, err := ycsbWorkload(w, partitions)
		if err != nil {
			return "", cli.Usage(err)
		}
		return name, nil
	}
	return "", cli.Usagef("drtmx serve: --workload %q: want %s", w.name, oneOf([]string{workloadTPCC, workloadYCSB}))
}

func ycsbWorkload(w *workloadFlags, partitions int) (string, error) {
	p, err := props.Load(w.files, w.values)
	if err != nil {
		return "", err
	}
	r := props.NewReader(p)
	r.CheckNames()
	layout, err := usertable.Read(p)
	r.Join(err)
	if err := r.Err(); err != nil {
		return "", err
	}
	catalog, err := layout.Catalog(partitions)
	if err != nil {
		return "", err
	}
	return usertable.WorkloadName(catalog)
}

// workloadTitle is the name of a workload for people.
func workloadTitle(name string) string {
	if usertable.IsWorkload(name) {
		return workloadYCSB
	}
	return name
}
