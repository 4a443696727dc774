#!/usr/bin/env python3
"""Reads the page of `rdmesh page` in Chromium, as an operator with a keyboard does.

page.py URL ROWS PICTURES AXE    ROWS: rows that the table of endpoints must have; PICTURES: folder for screenshots, or "-";
                                 AXE: axe-core's script, which looks for what readers with impairments stumble over

Prints a line for each thing that holds; fails with the first that does not.
"""
import json
import sys
import time

from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.common.action_chains import ActionChains

LIMIT = 30
BEGIN = time.monotonic()
# Of each table the first rows: the others are like them.
AXE_RUN = """
axe.run({exclude: ["tbody tr:nth-child(n+10)"]}).then((found) => arguments[0](found.violations))
"""
WIDE, PHONE = (1280, 900), (390, 844)


def start():
    options = webdriver.ChromeOptions()
    for flag in ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    options.binary_location = "/usr/bin/chromium"
    service = webdriver.chrome.service.Service("/usr/bin/chromedriver")
    return webdriver.Chrome(service=service, options=options)


def until(what, look):
    end = time.monotonic() + LIMIT
    while not (found := look()):
        if time.monotonic() > end:
            sys.exit(f"does not come true: {what}")
        time.sleep(0.1)
    print(f"{time.monotonic() - BEGIN:.1f} s: holds:", what, flush=True)
    return found


def check(what, holds, details=""):
    if not holds:
        sys.exit(f"does not hold: {what} {details}")
    print(f"{time.monotonic() - BEGIN:.1f} s: holds:", what, flush=True)


def note(driver, table):
    return driver.find_element(By.CSS_SELECTOR, f"section[aria-labelledby={table}] .note").text


def rows(driver, table):
    return driver.execute_script(
        "return [...document.querySelectorAll(`section[aria-labelledby=${arguments[0]}] tbody tr`)]"
        ".map((row) => [...row.children].map((cell) => cell.textContent))",
        table,
    )


def press(driver, *keys):
    for key in keys:
        ActionChains(driver).send_keys(key).perform()


def by_keyboard(driver, count):
    press(driver, "/")
    focused = driver.switch_to.active_element
    check("the key / leads to the filter", focused.get_attribute("id") == "filter")
    press(driver, *"nowhere-at-all")
    until("a filter that nothing contains leaves no row", lambda: note(driver, "endpoints") == f"0 of {count} rows")
    focused.clear()
    press(driver, Keys.SPACE, Keys.BACKSPACE)
    until("without a filter all are back", lambda: note(driver, "endpoints").startswith(str(min(count, 500))))
    # On to the first heading of a table that sorts.
    for _ in range(60):
        press(driver, Keys.TAB)
        focused = driver.switch_to.active_element
        if focused.tag_name == "button" and focused.text == "Endpoint":
            break
    check("Tab leads to the headings", focused.text == "Endpoint", focused.tag_name)
    press(driver, Keys.ENTER, Keys.ENTER)
    names = [row[1] for row in rows(driver, "endpoints")]
    key = lambda name: (name.rstrip("0123456789"), int(name[len(name.rstrip("0123456789")) :] or 0))
    check("Enter sorts by a heading, twice the other way round", names == sorted(names, key=key, reverse=True), names[:5])
    check("a refresh leaves the focus where it is", still_focused(driver, focused))


def still_focused(driver, focused):
    time.sleep(2.5)
    return driver.switch_to.active_element == focused


def looks(driver, pictures, axe):
    for scheme in ["light", "dark"]:
        driver.execute_cdp_cmd(
            "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        )
        for name, (width, height) in {"wide": WIDE, "phone": PHONE}.items():
            driver.execute_cdp_cmd(
                "Emulation.setDeviceMetricsOverride",
                {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": name == "phone"},
            )
            driver.execute_script("scrollTo(0, 0)")
            time.sleep(0.3)
            spill = driver.execute_script("return document.documentElement.scrollWidth - innerWidth")
            check(f"{scheme}, {name}: nothing but tables is wider than the window", spill <= 0, spill)
            if pictures != "-":
                driver.save_screenshot(f"{pictures}/page-{scheme}-{name}.png")
            driver.execute_script(axe)
            found = driver.execute_async_script(AXE_RUN)
            serious = [one for one in found if one["impact"] in ("serious", "critical")]
            brief = [(one["id"], one["nodes"][0]["html"]) for one in serious]
            check(f"{scheme}, {name}: axe-core finds nothing serious", not serious, brief)


def requests(driver):
    events = (json.loads(entry["message"])["message"] for entry in driver.get_log("performance"))
    return {event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"}


def main(url, count, pictures, axe):
    driver = start()
    try:
        driver.get(url)
        count = int(count)
        shown = f"{count} rows" if count <= 500 else f"500 of {count} rows"
        until(f"{count} endpoints are listed", lambda: note(driver, "endpoints").startswith(shown))
        check("the key is not in the address any more", "key" not in driver.current_url, driver.current_url)
        until("a queue pair's traffic is seen", lambda: any(row[8] != "0 B/s" for row in rows(driver, "pairs")))
        with open(axe, encoding="utf-8") as script:
            looks(driver, pictures, script.read())
        by_keyboard(driver, count)
        base = "/".join(url.split("/")[:3])
        elsewhere = [one for one in requests(driver) if not one.startswith((base, "data:"))]
        check("nothing is asked for elsewhere", not elsewhere, elsewhere)
        errors = [entry for entry in driver.get_log("browser") if entry["level"] == "SEVERE"]
        check("no script has failed", not errors, errors)
        print("ready", flush=True)
        # The other end of the test ends the router now.
        sys.stdin.readline()
        state = lambda: driver.find_element(By.ID, "state").text
        until("the page says that the router is gone", lambda: state().startswith("Not up to date: "))
        print(state())
    finally:
        driver.quit()


main(*sys.argv[1:])
