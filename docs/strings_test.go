package docs

import (
	"context"
	"fmt"
	"log"

	"drtmx/server"
	"drtmx/tables"
	"drtmx/txn"
)

// String keys, rows as large as what is in them, and an index over a text.
func documents(ctx context.Context) error {
	catalog, err := tables.NewCatalog(tables.Def{
		Name: "page", Key: tables.StringKey, Primary: tables.Ordered, Partition: tables.Partitioning{Kind: tables.ByHash},
		Columns: []tables.Column{{Name: "title", Type: tables.Bytes, Size: 200}, {Name: "body", Type: tables.Bytes}},
		Secondary: []tables.Secondary{{
			Name: "by_title", Partition: tables.Partitioning{Kind: tables.ByHash},
			Key: []tables.KeyPart{{Column: "title", How: tables.Sorted}, {Column: tables.PrimaryKey, How: tables.Sorted}},
		}},
	})
	if err != nil {
		return err
	}
	c, err := server.Embedded(ctx, server.EmbeddedConfig{Catalog: catalog, Servers: 2})
	if err != nil {
		return err
	}
	defer c.Close()
	page := c.DB.Catalog().MustTable("page")
	title, body, byTitle := page.Field("title"), page.Field("body"), page.Secondary("by_title")

	err = c.DB.Update(ctx, func(t *txn.Txn) error {
		for url, name := range map[string]string{"/b": "Axes", "/a": "Zebras", "/a/x": "Axes"} {
			row := page.NewRow()
			row.SetBytes(title, []byte(name))
			row.SetBytes(body, make([]byte, 100*len(url)))
			if err := t.Insert(page, tables.Str(url), row); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return c.DB.View(ctx, func(t *txn.Txn) error {
		for e, err := range t.Scan(page.Primary(), tables.Str("/a"), tables.Last) { // to the end
			if err != nil {
				return err
			}
			fmt.Printf("%s: %s, %d bytes\n", e.Key, e.Row.Bytes(title), len(e.Row.Bytes(body)))
		}
		lo, hi := tables.Prefix(tables.AppendText(nil, []byte("Axes")))
		for e, err := range t.ScanReverse(byTitle, lo, hi) {
			if err != nil {
				return err
			}
			fmt.Printf("Axes: %s\n", e.Row.Bytes(byTitle.Field(tables.PrimaryKey)))
		}
		return nil
	})
}

func Example_strings() {
	if err := documents(context.Background()); err != nil {
		log.Fatal(err)
	}
	// Output:
	// /a: Zebras, 200 bytes
	// /a/x: Axes, 400 bytes
	// /b: Axes, 200 bytes
	// Axes: /b
	// Axes: /a/x
}
