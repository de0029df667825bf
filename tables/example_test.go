package tables_test

import (
	"fmt"
	"log"

	"drtmx/tables"
)

type page struct {
	Path string `drtmx:"key"`
	Size int64  `drtmx:"index=by_size"`
	Text string
}

// A catalogue of tables: one of a struct type, and one defined by its columns.
func Example() {
	pages := tables.Of[page]("page")
	visits := tables.Def{
		Name: "visit", Key: tables.StringKey, Primary: tables.Hash,
		Partition: tables.Partitioning{Kind: tables.ByHash},
		Columns:   []tables.Column{{Name: "count", Type: tables.Int64}, {Name: "by", Type: tables.Text, Size: 20}},
	}
	catalog, err := tables.CatalogOf(pages, visits)
	if err != nil {
		log.Fatal(err)
	}
	for _, ix := range catalog.Indexes {
		fmt.Printf("%s, ordered: %v\n", ix.Name, ix.Ordered)
	}
	visit := catalog.MustTable("visit")
	count, by := visit.Field("count"), visit.Field("by")
	row := visit.NewRow()
	row.SetInt(count, 7)
	row.SetText(by, []byte("ann"))
	fmt.Println(row.Int(count), string(row.Text(by)), row.Err())
	row.SetText(by, []byte("a name of more than twenty bytes"))
	fmt.Println(row.Err())
	// Output:
	// page, ordered: true
	// page.by_size, ordered: true
	// visit, ordered: false
	// 7 ann <nil>
	// tables: row does not fit table: column by: 32 bytes for a text of at most 20
}
